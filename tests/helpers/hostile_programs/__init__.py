"""Small programs that are hard to trace, and facts about how Thunder traces and runs them.

A program is a function of ``run``. It calls compiled functions through ``run``, and calls them again after it has
changed values that they read. Each file of programs has one subject.
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
