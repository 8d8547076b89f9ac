"""Whatever one model does in a process, the program of another one is kept, and another process loads it."""

import json

import forked_processes as forks

MADE, LOADED = [0, 1, {}], [1, 0, {}]


def test_programs_are_kept_whatever_others_did(tmp_path):
    """The later process does nothing of what is harmless."""
    first, second = (
        json.loads(forks.ask("odd_models", which, str(tmp_path)).splitlines()[-1]) for which in ("all", "lasting")
    )
    assert {name: found for name, found in first.items() if found != MADE} == {}
    assert {name: found for name, found in second.items() if found != LOADED} == {}
    assert len(first) == len(second) > 10
