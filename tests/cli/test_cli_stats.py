"""The command stats: what golden files do not show."""

import json

from commands import OTHER_RUN, get_output, save_run, save_two_runs
from recorded_templates import STARTED, make_full_ledger, save_ledger
from report_records import HOSTILE

from fusioncache.observe.record import database


def test_whatever_a_run_says_it_fits_a_screen(monkeypatch):
    ledger = make_full_ledger()
    for model in ("Generator", "Discriminator", HOSTILE, "Fourth"):
        ledger.history.begin_trace(model)
    for number in range(40):
        ledger.count_bypass(f"reason {number}, which is a long one because it says very much of what there is to say")
        ledger.emit("unkept", reason=f"cannot be stored: reason {number}")
    ledger.count("verified")
    save_ledger(monkeypatch, ledger, argv=["/home/me/" + "long_" * 30 + "name.py", HOSTILE])
    shown = get_output("stats").splitlines()
    assert len(shown) <= 30 and max(map(len, shown)) <= 80
    assert shown[0].endswith("  (run aaaaaaaa)") and "…" in shown[0]
    assert not any("\x1b" in line for line in shown)


def test_all_runs_are_counted_once_those_too_that_were_forgotten(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(database, "MOST_RUNS", 1)
        save_two_runs(monkeypatch)
    assert [run["id"] for run in json.loads(get_output("stats", "--runs", "--json"))["runs"]] == [OTHER_RUN]
    counts = {"since": STARTED, "runs": 2, "regions": 8, "hits": 3, "compiles": 4, "loads": 1}
    seconds = {"compile_seconds": 3.125, "load_seconds": 0.00390625, "saved_seconds": 6.08984375}
    assert json.loads(get_output("stats", "--json"))["lifetime"] == counts | seconds
    save_run(monkeypatch)  # it was forgotten, and goes on
    assert len(json.loads(get_output("stats", "--runs", "--json"))["runs"]) == 2
    assert json.loads(get_output("stats", "--json"))["lifetime"]["regions"] == 8
