"""Which sizes of its inputs a program looked at while it was traced, and the same operations called at other sizes.

``sizes`` has integers that know what they are made of; ``watching`` gives them to the model's code in place of plain
ones, and writes into a ``journal`` what was done with them; ``replay`` calls the operations of a journal again.
"""
