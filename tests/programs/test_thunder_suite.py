"""Thunder's tests have the same outcomes with fusioncache as without, and a difference is noticed.

Outcomes without fusioncache are recorded, with the versions that they depend on; with others they run here. A test
with another outcome runs again in both ways. To record outcomes anew: ``python tests/helpers/thunder_suite/run.py
--only tests/helpers/thunder_suite/ci.jsonl --record tests/helpers/thunder_suite/ci.jsonl``.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from repository import HELPERS
from thunder_suite.outcomes import Result, Run, find_differences, find_versions

_SCRIPT, _RECORD = (HELPERS / "thunder_suite" / name for name in ("run.py", "ci.jsonl"))
_NEEDED = ("pytest_benchmark", "looseversion", "litgpt", "xdist")  # by Thunder's tests, and not by Thunder


@pytest.mark.skipif(bool([name for name in _NEEDED if find_spec(name) is None]), reason="needs " + ", ".join(_NEEDED))
def test_thunders_own_tests_end_alike(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    # Each job would import and collect everything again, and the other core runs other tests of this session.
    command = [sys.executable, _SCRIPT, "--only", _RECORD, "--jobs", "0", "--time-limit", "1700", "--reruns", "1"]
    command += ["--backend", "eager", "--json", result, "--directory", tmp_path / "runs"]
    is_up_to_date = json.loads(_RECORD.read_text().splitlines()[0])["versions"] == find_versions()
    command += ["--without", _RECORD] if is_up_to_date else []
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    assert found["finished"] == {"without": True, "with": True}
    assert found["total"]["tests"] > 60
    assert found["counts"]["regions"] > 50
    assert found["counts"]["hits"] > 10


def _run(**outcomes: str) -> Run:
    return Run({f"test_a.py::{name}": Result(outcome) for name, outcome in outcomes.items()}, True)


def test_a_different_outcome_counts_unless_it_is_explained_or_comes_seldom() -> None:
    runs = (_run(one="passed", two="passed", three="passed"), _run(one="passed", two="failed", three="failed"))
    three, two = find_differences(runs, {r"::three$": "it looks at the trace"})
    assert (two.id, two.without.outcome, two.with_.outcome) == ("test_a.py::two", "passed", "failed")
    assert two.counts_against
    assert (three.id, three.explained, three.counts_against) == ("test_a.py::three", "it looks at the trace", False)
    for again, counts in ((runs, True), ((runs[0], runs[0]), False)):
        two.add_rerun(again)
        assert two.counts_against == counts
