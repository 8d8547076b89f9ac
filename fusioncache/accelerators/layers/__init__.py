"""A layer derived once: of blocks that are alike, Thunder interprets the first few, and the others are written out.

``likeness`` says whether two blocks are alike, ``indifference`` which calls cannot tell them apart, ``recording``
what the interpreter did for one block, ``stamping`` does the same for another one, ``session`` decides in each trace.
"""
