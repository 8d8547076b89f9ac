"""Whatever one model does in a process, the program of another one is kept, and another process loads it."""

import json

import forked_processes as forks

MADE, LOADED = [0, 1, {}], [1, 0, {}]


def test_programs_are_kept_whatever_others_did(tmp_path):
    """The later process does nothing of what is harmless."""
    for which, expected in (("all", MADE), ("lasting", LOADED)):
        found = json.loads(forks.ask("odd_models", which, str(tmp_path)).splitlines()[-1])
        assert {name: became for name, became in found.items() if became != expected} == {}
        assert len(found) > 10
