"""Families in the store: what a process goes on from that has seen no length of a program yet.

A family is kept under the form of its programs, with what tells where it is right: what they read, and what Thunder's
passes looked at. Whoever finds one compares all of that as for any program. The artifacts are ``family``, ``reads``,
and for each program that is known ``program-0``, ``program-1`` and so on, and ``regions-0`` where that is known::

    family = the outline that ``programs/kept_passes.py`` writes: what passes looked at, and the sizes of each program

The traces are the bytes of programs that are stored themselves, mostly, so that they take no room of their own. What is
filled in from a family that is stored is not stored itself: a later process fills it in as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from fusioncache.accelerators.programs.kept_passes import decode_outline, encode_outline
from fusioncache.accelerators.programs.text import decode, decode_reads, encode, encode_reads
from fusioncache.accelerators.sizes.families import MOST_KNOWN, Family, KnownProgram
from fusioncache.ir import Declined, Key, Scope
from fusioncache.store import Store
from fusioncache.store.entry import FAMILY_SLOTS

logger = logging.getLogger("fusioncache")

_FAMILY, _READS, _PROGRAM, _REGIONS = "family", "reads", "program-", "regions-"
_PATIENCE = 10.0
"""Seconds for which to wait for other processes that keep a family of the same form, which takes them milliseconds."""


def find_families(store: Store, form: Key) -> tuple[Family, ...]:
    """Returns the families that are stored for a form. What cannot be read is removed. Never raises.

    A remote is asked for what is not here, up to the first slot that is free there, too.
    """
    return tuple(family for _, family in _list_families(store, form, asks_remote=True))


def keep_family(store: Store, form: Key, family: Family, name: str) -> bool:
    """Keeps a family, in the stead of what is stored of it. If all slots are taken, the oldest family goes.

    Args:
        store: where it goes.
        form: of its programs.
        family: learns what others have stored of it.
        name: of the model, for people.

    Returns:
        Whether it is stored.

    Raises:
        ValueError: if something in it cannot be written.
    """
    with store.take_turn(form, FAMILY_SLOTS[0], _PATIENCE):
        found = dict(_list_families(store, form))
        same = [slot for slot, other in found.items() if other.is_same(family)]
        for slot in same:
            _learn_all(family, found[slot].known)
        free = [slot for slot in FAMILY_SLOTS if slot not in found]
        slot = next(iter((*same, *free)), None) or min(found, key=lambda slot: _find_time(store, form, slot))
        artifacts = encode_family(family)
        store.remove(form, slot)
        return store.save(form, slot, artifacts, name=name)


def forget_family(store: Store, form: Key, family: Family) -> None:
    """Removes what is stored of a family."""
    with store.take_turn(form, FAMILY_SLOTS[0], _PATIENCE):
        for slot, other in _list_families(store, form):
            if other.is_same(family):
                store.remove(form, slot)


def encode_family(family: Family) -> Mapping[str, bytes]:
    """Returns a family as artifacts. Equal ones have equal bytes.

    Raises:
        ValueError: if something in it cannot be written.
    """
    outline = encode_outline(family.passes, [each.sizes for each in family.known])
    artifacts = {_FAMILY: outline, _READS: encode_reads(family.reads)}
    for number, program in enumerate(family.known):
        artifacts[f"{_PROGRAM}{number}"] = encode(program.text)
        if program.regions is not None:
            artifacts[f"{_REGIONS}{number}"] = program.regions
    return artifacts


def decode_family(artifacts: Mapping[str, bytes]) -> Family:
    """Returns the family that was encoded.

    Raises:
        ValueError: if these are the artifacts of none.
    """
    try:
        passes, sizes = decode_outline(artifacts[_FAMILY])
        if not 2 <= len(sizes) <= MOST_KNOWN:
            raise ValueError(f"it is of {len(sizes)} programs")
        known = [
            KnownProgram(decode(artifacts[f"{_PROGRAM}{number}"]), each, artifacts.get(f"{_REGIONS}{number}"))
            for number, each in enumerate(sizes)
        ]
        return Family(decode_reads(artifacts[_READS]), passes, known)
    except ValueError:
        raise
    except Exception as error:  # programs that are none of one family
        raise ValueError(f"no family: {error!r}") from error


def _list_families(store: Store, form: Key, *, asks_remote: bool = False) -> Iterator[tuple[str, Family]]:
    for slot in FAMILY_SLOTS:
        artifacts = store.peek(form, slot, asks_remote=asks_remote)
        if artifacts is None:
            asks_remote = False
            continue
        try:
            yield slot, decode_family(artifacts)
        except ValueError as error:
            logger.info("a stored family does not decode", exc_info=error)
            store.discard(form, slot, f"a stored family that does not decode: {type(error).__name__}")


def _learn_all(family: Family, known: tuple[KnownProgram, ...]) -> None:
    for program in known:
        try:
            family.learn(program)
        except Declined as error:  # then it is left to what this process has seen
            error.require(Scope.LENGTH)
            logger.info("a stored program is of no family here: %s", error)


def _find_time(store: Store, form: Key, slot: str) -> float:
    """Returns when the family in a slot was made, in seconds since the epoch."""
    entry = store.entry(form.digest, slot)
    return entry.created if entry else 0.0
