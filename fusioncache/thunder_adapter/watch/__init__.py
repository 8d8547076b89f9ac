"""What Thunder's interpreter does while it traces, as told to whoever observes the trace that is being made.

``hooks`` stands where the interpreter calls, looks up and stores; ``instructions`` says what some of that is about.
"""
