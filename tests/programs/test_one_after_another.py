"""Whatever one model does in a process, the program of another one is kept, and another process loads it."""

import json

import forked_processes as forks
import pytest

MADE, LOADED = [0, 1, {}], [1, 0, {}]


@pytest.mark.parametrize(("group", "later"), [("HARMLESS", "NOTHING"), ("LASTING", "LASTING")])
def test_programs_are_kept_whatever_others_did(group, later, tmp_path):
    first, second = (
        json.loads(forks.ask("odd_models", each, str(tmp_path)).splitlines()[-1]) for each in (group, later)
    )
    assert {name: found for name, found in first.items() if found != MADE} == {}
    assert {name: found for name, found in second.items() if found != LOADED} == {}
    assert len(first) == len(second) > 3
