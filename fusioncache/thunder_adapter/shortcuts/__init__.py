"""Shortcuts: faster versions of functions in Thunder's interpreter and passes.

Each maker takes a function of Thunder and returns one that computes the same in fewer steps. The shortcut calls the
original where it does not apply. A shortcut stays only if it saves 2% of the CPU time of a first step:
``docs/upstream.md`` has the figures. ``symbols`` is for single operations of a trace, ``traces`` for whole traces, all
else for the interpreter.
"""
