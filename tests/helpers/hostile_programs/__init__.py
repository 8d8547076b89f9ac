"""Small programs that are hard to trace, and all that can be told of how Thunder traces and runs them.

A program is a function that is given a ``Runner`` and calls compiled functions through it, again after it has changed
what they read. A file of programs is one subject.
"""

from hostile_programs import alike, arithmetic, blocks, calls, containers, control, errors, modules, objects, state
from hostile_programs.observation import Program, Runner, observe

__all__ = ["PROGRAMS", "Program", "Runner", "observe"]

PROGRAMS: dict[str, Program] = {
    f"{subject.__name__.rpartition('.')[2]}: {name.replace('_', ' ')}": function
    for subject in (alike, arithmetic, blocks, calls, containers, control, errors, modules, objects, state)
    for name, function in vars(subject).items()
    if getattr(function, "is_program", False)
}
"""All programs by subject and name."""
