"""Programs at sizes that they were not traced at: what a program did with sizes is recorded, and done again.

``sizes`` has numbers that know what they are made of, and ``values`` what has sizes; ``hooks`` gives such numbers to
the model's code in place of plain ones, and ``watch`` writes into a ``journal`` what is done with them; ``passes``
calls the operations of a journal again, and notes in another one what Thunder's passes look at; ``families`` fills in
programs that differ in numbers only, and ``lengths`` decides for each call which of that is done.
"""
