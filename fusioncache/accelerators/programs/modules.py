"""Modules of torch.nn: what one holds that a module does not always hold.

A module has fifteen tables that are empty nearly always. They are left out where they are as ``Module.__init__`` makes
them, and a table that is missing is said to be missing, so that what is left out can be told from the text. The order
of a module's attributes is that of its lines if these tables come first, as they do unless somebody sets an attribute
before ``Module.__init__`` runs; then it is written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice

import torch

from fusioncache.accelerators.programs.containers import ordered_pairs
from fusioncache.accelerators.programs.introspection import is_derived
from fusioncache.accelerators.programs.literals import write_name

HOOKS = (
    "_backward_pre_hooks",
    "_backward_hooks",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_TABLES = {"parameter": "_parameters", "buffer": "_buffers", "module": "_modules"}
_OTHERS: Mapping[str, object] = {"training": True, "_non_persistent_buffers_set": set(), "_is_full_backward_hook": None}
_FIRST = tuple(vars(torch.nn.Module()))
"""What every module has, in the order in which it gets it."""


def describe_frame(attributes: Mapping[str, object]) -> str:
    """Returns what is unusual of a module as a whole; nothing of one whose attributes follow what every module has.

    These are the names of what every module has and this one has not, each after a minus, then the order of all names.
    """
    absent = "".join(f" -{name}" for name in (*_TABLES.values(), *HOOKS, *_OTHERS) if name not in attributes)
    if tuple(islice(attributes, len(_FIRST))) == _FIRST:
        return absent
    return f"{absent} in the order {' '.join(map(write_name, attributes))}"


def has_hooks(value: object, name: str) -> bool:
    """Returns whether a module has hooks in the table with this name, or in any of those in its ``__dict__``."""
    if not is_derived(type(value), torch.nn.Module):
        return False
    return any(vars(value).get(each) for each in (HOOKS if name == "__dict__" else (name,)))


def list_parts(attributes: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Yields what a module consists of: what each part is (nothing for an attribute), its name, and the part."""
    for kind, table in _TABLES.items():
        children = attributes.get(table)
        if type(children) is dict:
            yield from ((kind, name, child) for name, child in children.items())
    yield from (("", name, value) for name, value in _list_own(attributes))


def _list_own(attributes: Mapping[str, object]) -> list[tuple[str, object]]:
    """Returns the attributes that are not as in every module, without the tables of parameters, buffers and submodules.

    Hooks are numbered in the order of their registration: their own numbers count all hooks of the process.
    """
    found: list[tuple[str, object]] = []
    numbers: dict[int, int] | None = None
    for name, value in attributes.items():
        if type(value) is OrderedDict:
            if name not in HOOKS:
                found.append((name, value))
            elif value:
                numbers = numbers if numbers is not None else _number_hooks(attributes)
                found.append(
                    (name, [(numbers[key] if type(key) is int else key, hook) for key, hook in ordered_pairs(value)])
                )
        elif type(value) is dict:
            if name not in _TABLES.values():
                found.append((name, value))
        elif name not in _OTHERS or not _is_same(value, _OTHERS[name]):
            found.append((name, value))
    return found


def _is_same(value: object, usual: object) -> bool:
    return value is usual or (type(value) is set and not value and type(usual) is set)


def _number_hooks(attributes: Mapping[str, object]) -> dict[int, int]:
    keys = {
        key for name in HOOKS if type(hooks := attributes.get(name)) is OrderedDict for key in hooks if type(key) is int
    }
    return {key: number for number, key in enumerate(sorted(keys))}
