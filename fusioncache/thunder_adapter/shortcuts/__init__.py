"""Shorter ways to what Thunder's interpreter and passes compute by detours.

Each function that shortens one takes a function of Thunder's and returns one that does the same in fewer steps. Where
the shorter way does not apply, that calls the original. A shortcut stays only if it saves 2% of the processor's seconds
of a first step: ``docs/upstream.md`` has the figures. ``symbols`` is for single operations of a trace, ``traces`` for
whole traces, all else for the interpreter.
"""
