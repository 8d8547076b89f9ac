"""Programs that are hard to trace: nothing shows whether shortcuts traced them.

Each is traced with all groups of shortcuts, and recorded. A file stores digests of the outcomes without shortcuts; if
an outcome differs, the program is traced without shortcuts here too. If key and reads of a trace equal those of an
earlier one, that one would have been loaded, so both must be the same. ``REWRITE_GOLDEN=1`` rewrites the file.
"""

import hashlib
import json
import os
import re
from contextlib import contextmanager, suppress
from unittest import mock

import pytest
import thunder
from hostile_programs import PROGRAMS
from hostile_programs.observation import observe
from repository import HELPERS, ROOT
from same_traces import OWN

from benchmarks.equality.traces import describe_call, trace_recorded
from fusioncache import tracing
from fusioncache.accelerators.programs import text
from fusioncache.ir.errors import Declined
from fusioncache.thunder_adapter.installation import TRACING

FILE = HELPERS / "hostile_programs" / "own.json"
RECORD = json.loads(FILE.read_text())
SOURCES = "sources"
"""The item with the digest of the programs' sources, because traces and errors contain line numbers."""
ALONE = {
    "cells": "calls: closures",
    "natives": "calls: partials",
    "attributes": "objects: getattr and getattribute",
    "iteration": "containers: iterators and comprehensions",
    "operators": "arithmetic: operators that refuse",
    "conditions": "control: chains of comparisons",
    "values": "containers: keys that look alike",
    "constraints": "arithmetic: that look alike as arguments",
}
"""Groups of the interpreter's shortcuts, each with a program to trace without the other groups."""


LITTLE = "objects: a little of everything"
SETS = {group: (name, (*OWN, group)) for group, name in ALONE.items()} | {
    f"bit {bit} is {value}": (LITTLE, [name for number, name in enumerate(TRACING) if number >> bit & 1 == value])
    for bit in range(len(TRACING).bit_length())
    for value in (0, 1)
}
"""Also sets by the bits of the groups' numbers: for any two groups some set contains the one without the other."""


def digest(facts):
    """Returns a digest of facts, without the bits of numbers, which other processors may round differently."""
    text = "".join(f"{name}\n{fact}\n" for name, fact in facts.items())
    return hashlib.sha256(re.sub("bits=[0-9a-f]*", "", text.replace(str(ROOT), "")).encode()).hexdigest()[:16]


def digest_sources():
    return digest({path.name: path.read_text() for path in sorted(FILE.parent.glob("*.py"))})


@contextmanager
def watching():
    """Records every trace; yields the pairs of a reusable earlier trace and the new one whose texts differ."""
    own, kept, wrong = thunder.thunder_general_jit, [], []

    def trace(function, args, kwargs, /, **options):
        key, now = describe_call(function, args, kwargs)
        found = [made for known, reads, made in kept if known == key and text.find_difference(reads, now) is None]
        made, recorder = trace_recorded(own, function, args, kwargs, **options)
        # Prints only traces that are compared, because Thunder advances a counter when it prints an object's name.
        pairs = [(print_traces(earlier), print_traces(made)) for earlier in found]
        wrong.extend(pair for pair in pairs if pair[0] != pair[1])
        if recorder is not None:  # else the key has no value
            with suppress(Declined):
                kept.append((key, recorder.reads(), made))
        return made

    with mock.patch.object(thunder, "thunder_general_jit", trace):
        yield wrong


def print_traces(made):
    return "\n".join(map(str, (made.prologue_trace, made.computation_trace, made.epilogue_trace)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_tells_that_a_program_was_traced_with_shortcuts(name):
    tracing.install()
    with watching() as wrong:
        found = observe(PROGRAMS[name])
    assert not wrong
    assert_same(name, found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "groups"), SETS.values(), ids=SETS)
def test_nothing_tells_that_a_program_was_traced_with_some_shortcuts(name, groups):
    tracing.install(groups)
    assert_same(name, observe(PROGRAMS[name]))


def assert_same(name, found):
    tracing.uninstall()
    if digest(found) != RECORD.get(name):
        own = observe(PROGRAMS[name])
        assert found == own
        if os.environ.get("REWRITE_GOLDEN"):
            RECORD[name] = digest(own)


@pytest.fixture(scope="module", autouse=True)
def _record():
    yield
    if os.environ.get("REWRITE_GOLDEN"):
        known = {name: RECORD[name] for name in sorted(PROGRAMS)}
        FILE.write_text(json.dumps(known | {SOURCES: digest_sources()}, indent=1) + "\n")


def test_each_program_is_written_down_as_it_is():
    """Otherwise each program would be traced again without shortcuts here, which takes most of the time."""
    assert {*PROGRAMS, SOURCES} == set(RECORD)
    assert RECORD[SOURCES] == digest_sources()
