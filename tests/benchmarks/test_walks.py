"""How many files a value passes on its way: a limit for each walk of ``benchmarks/walks.py``."""

import json

from click.testing import CliRunner

from benchmarks import walks

LIMITS = {
    "call": {"stops": 40, "files": 8, "returns": 4},
    "stored program": {"files": 18},
    "loaded program": {"files": 14},
    "length": {"files": 22},
}


def test_values_pass_few_files(tmp_path):
    result = CliRunner().invoke(walks.main, ["--backend", "eager", "--json", str(tmp_path / "walks.json")])
    assert result.exit_code == 0, result.output
    counts = json.loads((tmp_path / "walks.json").read_text())
    for walk, limits in LIMITS.items():
        for what, most in limits.items():
            assert 0 < counts[walk][what] <= most, (walk, what, counts[walk])


def test_a_stop_is_a_function_that_has_the_value(tmp_path):
    result = CliRunner().invoke(walks.main, ["--backend", "eager", "--show", "call"])
    stops = [line.split() for line in result.output.splitlines()]
    assert stops[0] == ["cache/call.py", "_dispatch_by_contiguity.<locals>.dispatch"]
    assert ["backends/eager.py", "Eager.compile"] in stops and ["cache/cache.py", "Cache.template"] not in stops
