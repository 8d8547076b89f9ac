"""Programs that are hard to trace: nothing tells whether shortcuts traced them.

Each is traced with all groups of shortcuts, and recorded meanwhile. What came of Thunder's own tracing is written down;
where that is another outcome, Thunder traces by itself here too. A trace whose key and reads are those of an earlier
one would have been loaded in its place, so it has to be the same. ``REWRITE_GOLDEN=1`` writes down anew.
"""

import json
import os

import pytest
from hostile_programs import PROGRAMS, observe
from hostile_programs.record import FILE, SOURCES, digest, digest_sources, find_difference
from recorded_traces import Watch
from same_traces import OWN

from fusioncache import tracing

RECORD = json.loads(FILE.read_text())
ALONE = {
    "cells": "calls: closures",
    "natives": "calls: partials",
    "attributes": "objects: getattr and getattribute",
    "iteration": "containers: iterators",
    "operators": "arithmetic: operators that refuse",
    "conditions": "control: chains of comparisons",
    "values": "containers: keys that look alike",
    "constraints": "arithmetic: that look alike as arguments",
    "instructions": "control: finally and with",
}
"""Groups of the interpreter's shortcuts, each with a program that it traces without the other ones."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_tells_that_a_program_was_traced_with_shortcuts(name):
    tracing.install()
    with Watch().watching() as watch:
        found = observe(PROGRAMS[name])
    assert not watch.wrong
    assert_same(name, found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", ALONE)
def test_nothing_tells_that_a_program_was_traced_with_some_shortcuts(group):
    tracing.install([*OWN, group])
    assert_same(ALONE[group], observe(PROGRAMS[ALONE[group]]))


def assert_same(name, found):
    tracing.uninstall()
    if digest(found) != RECORD.get(name):
        own = observe(PROGRAMS[name])
        assert find_difference(own, found) is None
        if os.environ.get("REWRITE_GOLDEN"):
            RECORD[name] = digest(own)


@pytest.fixture(scope="module", autouse=True)
def _record():
    yield
    if os.environ.get("REWRITE_GOLDEN"):
        known = {name: RECORD[name] for name in sorted(PROGRAMS)}
        FILE.write_text(json.dumps(known | {SOURCES: digest_sources()}, indent=1) + "\n")


def test_each_program_is_written_down_as_it_is():
    """Otherwise Thunder would trace them all once more here, which takes most of the time."""
    assert {*PROGRAMS, SOURCES} == set(RECORD)
    assert RECORD[SOURCES] == digest_sources()
