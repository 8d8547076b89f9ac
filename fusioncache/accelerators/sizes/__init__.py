"""Programs at sizes that they were not traced at: uses of sizes are recorded, and replayed at other sizes.

``sizes`` defines numbers that record their expression; ``values`` finds the values that have sizes. ``hooks`` passes
such numbers to the model's code in place of plain ones, and ``watch`` records their uses in a ``journal``. ``passes``
replays a journal with symbols, and records the guards of Thunder's passes. ``families`` fills in programs that differ
only in numbers. ``lengths`` decides for each call whether to fill in, replay or interpret.
"""
