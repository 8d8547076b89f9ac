"""A layer derived once: of blocks that are alike, Thunder interprets the first few, and the others are copied.

``indifference`` says which calls cannot tell two blocks apart, ``recording`` what the interpreter did for one block,
``stamping`` compares blocks and does the same for another one, ``session`` decides in each trace.
"""
