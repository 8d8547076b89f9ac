"""Traces repeated layers once: of similar blocks Thunder interprets the first few, and the others are copied.

``block_independence`` decides which calls cannot distinguish two blocks. ``recording`` stores what the interpreter did
for one block. ``block_replay`` compares blocks, and repeats a recording for another block. ``session`` decides in each
trace which blocks are recorded and copied.
"""
