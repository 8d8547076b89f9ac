"""The command stats, to the letter."""

from __future__ import annotations

import json
import time

import pytest
from commands import CAST, FIRST_RUN, OTHER_RUN, call, lines, out, save_run, save_two_runs
from recorded import full_ledger, save, used

_STATS = f"""
run                           {FIRST_RUN}
command                       train.py --depth 4
started                       2023-11-14 22:13:20+00:00
pid                           4321
regions                       7
templates                     2
hits                          3
misses                        2
bypasses                      3
  compile failed: ValueError  1
  unknown op                  2
compiles                      3
compile seconds               2.125
loads                         1
load seconds                  0.004
not kept                      1
  a number among its inputs   1
saved seconds                 6.000 (an estimate)
canonicalize seconds          0.031
seconds in all phases         2.910
  tracing                     0.500
  fusing                      0.250
  planning                    0.000
  canonicalizing              0.031
  compiling                   2.125
  loading                     0.004
"""


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def test_stats(monkeypatch):
    ledger = full_ledger()
    ledger.records.spent("tracing", 0.5)
    ledger.records.spent("fusing", 0.25)
    save(monkeypatch, ledger)
    assert out("stats") == lines(_STATS)


def test_stats_as_json(monkeypatch):
    save_run(monkeypatch)
    assert json.loads(out("stats", "--json")) == {
        "schema": 1,
        "id": FIRST_RUN,
        "started": 1700000000.0,
        "pid": 4321,
        "command": "train.py --depth 4",
        "regions": 7,
        "templates": 2,
        "hits": 3,
        "misses": 2,
        "bypasses": {"unknown op": 2, "compile failed: ValueError": 1},
        "compiles": 3,
        "compile_seconds": 2.125,
        "loads": 1,
        "load_seconds": 0.00390625,
        "unkept": {"a number among its inputs": 1},
        "saved_seconds": 6.0,
        "canonicalize_seconds": 0.03125,
        "phases": {"planning": 0.0, "canonicalizing": 0.03125, "compiling": 2.125, "loading": 0.00390625},
        "unrecorded": 0,
    }


def test_stats_of_another_run(monkeypatch):
    save_two_runs(monkeypatch)
    assert out("stats").split()[1] == OTHER_RUN
    assert json.loads(out("stats", "--run", "aa", "--json"))["regions"] == 7


def test_runs(monkeypatch):
    save_two_runs(monkeypatch)
    assert out("stats", "--runs") == lines(f"""
id{" " * 30}  started                     pid  regions  templates  hits  compiles  compile seconds  command
{OTHER_RUN}  2023-11-14 22:14:20+00:00  4321        1          1     0         1            1.000  other.py
{FIRST_RUN}  2023-11-14 22:13:20+00:00  4321        7          2     3         3            2.125  train.py --depth 4
""")


def test_runs_as_json(monkeypatch):
    save_two_runs(monkeypatch)
    data = json.loads(out("stats", "--runs", "--json"))
    assert data["schema"] == 1
    assert [run["id"] for run in data["runs"]] == [OTHER_RUN, FIRST_RUN]
    assert {"schema": 1, **data["runs"][1]} == json.loads(out("stats", "--json", "--run", "aa"))


def test_a_command_line_cannot_break_a_table_or_the_terminal(monkeypatch):
    save(monkeypatch, used(CAST), argv=["a\nb\x1b[31m"])
    assert out("stats", "--runs").splitlines()[1].endswith("  'a\\nb\\x1b[31m'")
    assert "'a\\nb\\x1b[31m'\n" in out("stats")


def test_one_run_or_all_of_them(monkeypatch):
    save_run(monkeypatch)
    result = call("stats", "--runs", "--run", "a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "give only one of them" in result.stderr
