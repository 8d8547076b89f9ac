"""A layer derived once: of blocks that are alike, Thunder interprets the first few, and the others are copied.

``block_independence`` says which calls cannot tell two blocks apart. ``recording`` has what the interpreter did for one
block. ``block_replay`` compares blocks and does the same for another one. ``session`` decides in each trace.
"""
