"""Compiling ahead of use: what a store has seen asked for; and, beside a process that traces, what it is to call."""
