"""Small programs that are hard to trace, and all that can be told of how Thunder traces and runs them.

A program is a function that is given ``run``, and calls compiled functions through it, again after it has changed what
they read. A file of programs is one subject.
"""

import inspect

from hostile_programs import arithmetic, calls, containers, control, objects, state

PROGRAMS = {
    f"{subject.__name__.rpartition('.')[2]}: {name.replace('_', ' ')}": function
    for subject in (arithmetic, calls, containers, control, objects, state)
    for name, function in vars(subject).items()
    if inspect.isfunction(function) and [*inspect.signature(function).parameters] == ["run"]
}
"""All programs by subject and name."""
