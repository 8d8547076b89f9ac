"""Where the programs for one key are in the store, and which of them goes when there is no more room.

Several programs may have one key, as reads tell them apart: code and globals that only the derivation knew of. Each is
an entry of the store by itself, under the same key and one of a few words in place of a backend's name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fusioncache.accelerators.programs.bytecode import CompiledProgram, encode_code
from fusioncache.accelerators.programs.reads import Read, decode_reads, encode_reads
from fusioncache.accelerators.programs.text import ProgramText, decode, encode
from fusioncache.ir import Key
from fusioncache.observe.record.kept_regions import KeptRegions
from fusioncache.store import Store, StoredArtifacts
from fusioncache.store.entry import PROGRAM_SLOTS

logger = logging.getLogger("fusioncache")

PROGRAM = "program"
"""The artifact with the traces."""
READS = "reads"
"""The artifact with what the derivation read."""
BYTECODE = "bytecode"
"""The artifact with what Python compiled of the traces. It may be missing, and is not trusted: see ``bytecode.py``."""
REGIONS = "regions"
"""The artifact with what a run has on record of the traces' regions, for people: see ``kept_regions.py``."""

_PATIENCE = 10.0
"""Seconds for which to wait for other processes that keep a program for the same key, which takes them milliseconds."""

_STALE = "a stored program that does not decode"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored program, which may be reused where its reads are what they were.

    Attributes:
        slot: the word that it is stored under.
        text: its traces.
        reads: what its derivation read.
        seconds: that deriving it took.
        bytecode: what Python compiled of the traces; None if that is not there.
        regions: what a run has on record of the traces' regions, as bytes if it is stored; None if that is not there.
        compiled: what Python made of the traces, if that is at hand.
    """

    slot: str
    text: ProgramText
    reads: tuple[Read, ...]
    seconds: float
    bytecode: bytes | None
    regions: bytes | KeptRegions | None = None
    compiled: CompiledProgram | None = None


def find_candidates(store: Store, key: Key) -> Iterator[Candidate]:
    """Returns the programs that are stored for a key. What cannot be read is removed. Never raises.

    They are read one by one, and only as far as they are asked for. Slots are taken in their order, so nothing is
    looked for behind one that is free.
    """
    for slot in PROGRAM_SLOTS:
        artifacts = store.load(key, slot)
        if artifacts is None:
            return
        candidate = _decode(store, key, slot, artifacts)
        if candidate is not None:
            yield candidate


def _decode(store: Store, key: Key, slot: str, artifacts: StoredArtifacts) -> Candidate | None:
    """Returns what is in a slot. What does not decode is removed."""
    try:
        text, reads = decode(artifacts[PROGRAM]), decode_reads(artifacts[READS])
        return Candidate(slot, text, reads, artifacts.seconds, artifacts.get(BYTECODE), artifacts.get(REGIONS))
    except (ValueError, KeyError) as error:
        logger.info("a stored program for %s does not decode", key.digest[:12], exc_info=error)
        store.discard(key, slot, f"{_STALE}: {type(error).__name__}")
        return None


def keep_program(
    store: Store,
    key: Key,
    text: ProgramText,
    reads: Collection[Read],
    *,
    name: str,
    seconds: float,
    unfit: Collection[str] = (),
    regions: bytes | None = None,
    bytecode: bytes | None = None,
) -> bool:
    """Keeps a program, unless one with the same reads is there. If all slots are taken, the oldest program goes.

    Args:
        store: where it goes.
        key: that it was derived for.
        text: its traces.
        reads: what its derivation read.
        name: of the model, for people.
        seconds: that deriving it took.
        unfit: the slots with programs that were tried in vain, whatever their reads are.
        regions: what a run has on record of its regions, if that is known.
        bytecode: what Python compiled of the traces, if that is known.

    Returns:
        Whether it was kept.

    Raises:
        ValueError: if the traces are no Python.
    """
    artifacts = {PROGRAM: encode(text), READS: encode_reads(reads), BYTECODE: bytecode or encode_code(text)}
    known = {} if regions is None else {REGIONS: regions}
    # Of processes that derived the same at once one keeps it, and none takes the slot that another has chosen.
    with store.take_turn(key, PROGRAM_SLOTS[0], _PATIENCE):
        slot = _choose_slot(store, key, frozenset(reads), unfit)
        return slot is not None and store.save(key, slot, {**artifacts, **known}, name=name, seconds=seconds)


def _choose_slot(store: Store, key: Key, reads: frozenset[Read], unfit: Collection[str]) -> str | None:
    """Returns a slot that is free now; None if a program with these reads has one, and may fit."""
    for slot in PROGRAM_SLOTS:
        artifacts = store.load(key, slot)
        candidate = None if artifacts is None else _decode(store, key, slot, artifacts)
        if candidate is None:
            return slot
        if slot not in unfit and frozenset(candidate.reads) == reads:
            return None
    oldest = min(PROGRAM_SLOTS, key=lambda slot: _find_time(store, key, slot))
    store.remove(key, oldest)
    return oldest


def _find_time(store: Store, key: Key, slot: str) -> float:
    """Returns when the program in a slot was made, in seconds since the epoch."""
    entry = store.entry(key.digest, slot)
    return entry.created if entry else 0.0
