"""Programs that are hard to trace: nobody can tell from anything whether shortcuts traced them.

Every third one of each subject is traced here, with all groups of shortcuts, and recorded meanwhile. What came of
Thunder's own tracing is written down; where that is another outcome, Thunder traces by itself here too. A trace whose
key and reads are those of an earlier one would have been loaded in its place, so it has to be the same. ``python
tests/helpers/hostile_programs/run.py`` runs them all, with ``--sets every`` also with each group by itself and with all
but each, and ``--record`` writes down anew.
"""

from collections.abc import Iterator

import pytest
from hostile_programs import PROGRAMS, observe
from hostile_programs.record import SOURCES, digest, digest_sources, find_difference, read_record
from recorded_traces import Watch

from fusioncache import tracing

RECORD = read_record()
SUBJECTS = {name: name.partition(":")[0] for name in PROGRAMS}
SAMPLE = [
    name
    for subject in dict.fromkeys(SUBJECTS.values())
    for name in [each for each in PROGRAMS if SUBJECTS[each] == subject][::3]
]
"""The same ones each time, some of each subject: all of them take two minutes."""


@pytest.fixture(autouse=True)
def _thunders_own() -> Iterator[None]:
    tracing.uninstall()
    yield
    tracing.uninstall()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLE)
def test_nobody_can_tell_that_a_program_was_traced_with_shortcuts(name):
    tracing.install()
    with Watch().watching() as watch:
        found = observe(PROGRAMS[name])
    tracing.uninstall()
    assert not watch.wrong
    if digest(found) != RECORD.get(name):
        assert find_difference(observe(PROGRAMS[name]), found) is None


def test_each_program_is_written_down_as_it_is():
    """Otherwise Thunder would trace them all once more here, which takes most of the time."""
    assert {*PROGRAMS, SOURCES} == set(RECORD)
    assert RECORD[SOURCES] == digest_sources()


def test_every_fact_is_in_the_digest_but_for_bits():
    facts = {"result": "Tensor((2,) bits=00ff)", "error": "ValueError: 3"}
    changed = [
        {**facts, "result": "Tensor((3,) bits=00ff)"},
        {**facts, "error": "ValueError: 4"},
        {"result": facts["result"]},
        {**facts, "call 2, cache": "1 misses"},
    ]
    assert digest(facts) == digest({**facts, "result": "Tensor((2,) bits=ff00)"})
    assert len({digest(each) for each in [facts, *changed]}) == 5
    assert all(find_difference(facts, each) for each in changed)
    assert find_difference(facts, dict(facts)) is None


def test_what_a_program_returns_raises_and_leaves_behind_are_facts():
    state = []

    def program(run):
        def f(x, n):
            state.append(n)
            return x * n if n else x.no_such_thing

        run(f, 2.0, 3)
        run(f, 2.0, 0)
        run(f, 2.0, 3)

    facts = observe(program)
    assert "call 1, result" in facts and "prologue" in "".join(facts) and "call 2, error" in facts
    assert facts["call 3, cache"] == "0 misses, 1 hits so far"
    assert "no_such_thing" in facts["call 2, error"] and "at f:" in facts["call 2, error"]
