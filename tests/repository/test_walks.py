"""How many files a value passes on its way: a limit for each walk."""

import pytest
import walks

LIMITS = {
    "call": {"stops": 16, "files": 8, "returns": 4},
    "stored program": {"files": 7},
    "loaded program": {"files": 5},
    "length": {"files": 21},
}


@pytest.mark.parametrize("walk", walks.WALKS)
def test_values_pass_few_files(walk, tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path))
    counts = walks.follow(walk, str(tmp_path)).count()
    assert all(0 < counts[what] <= most for what, most in LIMITS[walk].items()), counts


def test_a_stop_is_a_function_that_has_the_value(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path))
    stops = walks.follow("call", str(tmp_path)).stops
    assert stops[0] == ("cache/call.py", "_dispatch_by_contiguity.<locals>.dispatch")
    assert ("backends/eager.py", "Eager.compile") in stops and ("cache/cache.py", "Cache.template") not in stops
