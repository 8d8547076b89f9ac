"""The command stats, to the letter: in short, count by count, as a table of runs, and as JSON."""

import json
import sqlite3
import time
from contextlib import closing

import pytest
from commands import (
    CAST,
    FIRST_RUN,
    OTHER_RUN,
    get_error,
    get_output,
    save_run,
    save_two_runs,
)
from recorded_templates import STARTED, count_load, make_full_ledger, make_ledger, save_ledger
from report_records import HOSTILE

from fusioncache.observe.record import database
from fusioncache.observe.record.database import record_path
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import Run, find_script
from fusioncache.observe.record.stats import Stats


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


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
    assert shown[0].endswith(" · 2023-11-14 22:13  (run aaaaaaaa)") and "…" in shown[0]
    assert not any("\x1b" in line for line in shown)


def test_what_came_from_a_remote_what_it_saved_and_what_was_refused(monkeypatch):
    ledger = make_full_ledger()
    ledger.count("pulled", 12, of="ci (0123456789abcdef)")
    ledger.count("pulled_seconds", 40.5)
    ledger.count("pull_refused", 3, of="signed by a key that is not trusted")
    save_ledger(monkeypatch, ledger)
    assert (
        "remote      12 entries came, signed by ci (0123456789abcdef)\n"
        "            loaded what took other machines 40.5 s to make\n"
        "            not taken (3): signed by a key that is not trusted\n"
    ) in get_output("stats")
    verbose = get_output("stats", "--verbose")
    assert all(text in verbose for text in ("entries from the remote", "ci (0123456789abcdef)", "not taken from the"))


def test_loading_that_takes_longer_than_compiling_is_a_loss(monkeypatch):
    ledger = Ledger()
    ledger.count_region(CAST, (), hit=False)
    count_load(ledger, CAST, 0.5, 0.25)
    save_ledger(monkeypatch, ledger)
    text = get_output("stats")
    assert "cost        about 250 ms: fusioncache itself took longer than it saved\n" in text
    assert "about 250 ms lost" in text.partition("all runs")[2]
    assert "-250 ms\n" in get_output("stats", "--runs")
    assert json.loads(get_output("stats", "--json"))["saved_seconds"] == -0.25


def test_a_run_that_only_loads_is_recorded_and_says_why_it_has_no_regions(monkeypatch):
    ledger = Ledger()
    ledger.count_program_loaded("GPT", 0.5, 8.0)
    save_ledger(monkeypatch, ledger)
    assert "\nregions     0. Its programs were loaded, so that nothing was traced\n" in get_output("stats")


def test_a_run_without_regions_says_why(monkeypatch):
    ledger = Ledger()
    ledger.history.begin_trace("GPT")
    save_ledger(monkeypatch, ledger)
    assert "\nregions     0. Thunder found nothing to fuse in what it traced\n" in get_output("stats")
    ledger.count_bypass("Thunder fuses nothing: there is no GPU. To change that, pass other executors", region=False)
    save_ledger(monkeypatch, ledger)
    text = " ".join(get_output("stats").split())
    assert "regions 0. Thunder fuses nothing: there is no GPU. To change that, pass other executors compiled 0" in text


def test_all_runs_are_counted_those_too_that_were_forgotten(monkeypatch):
    monkeypatch.setattr(database, "MOST_RUNS", 1)
    save_two_runs(monkeypatch)
    assert [run["id"] for run in json.loads(get_output("stats", "--runs", "--json"))["runs"]] == [OTHER_RUN]
    counts = {"since": STARTED, "runs": 2, "regions": 8, "hits": 3, "compiles": 4, "loads": 1}
    seconds = {"compile_seconds": 3.125, "load_seconds": 0.00390625, "saved_seconds": 6.08984375}
    assert json.loads(get_output("stats", "--json"))["lifetime"] == counts | seconds


def test_a_run_that_was_forgotten_and_goes_on_is_counted_once(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(database, "MOST_RUNS", 1)
        save_two_runs(monkeypatch)
    save_run(monkeypatch)
    assert len(json.loads(get_output("stats", "--runs", "--json"))["runs"]) == 2
    assert json.loads(get_output("stats", "--json"))["lifetime"]["regions"] == 8


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("aa", FIRST_RUN), ("train.py", FIRST_RUN), ("22:14", OTHER_RUN), ("last", OTHER_RUN), ("er.py · 20", OTHER_RUN)],
)
def test_a_run_by_its_id_or_a_part_of_its_name(monkeypatch, wanted, found):
    save_two_runs(monkeypatch)
    assert json.loads(get_output("stats", "--run", wanted, "--json"))["id"] == found


def test_a_script_stands_for_its_newest_run(monkeypatch):
    save_two_runs(monkeypatch)
    with closing(sqlite3.connect(record_path())) as database, database:
        script = "json_set(CAST(content AS TEXT), '$.command', 'train.py')"
        database.execute(f"UPDATE runs SET content = {script}")
    assert json.loads(get_output("stats", "--run", "train.py", "--json"))["id"] == OTHER_RUN


def test_a_file_in_place_of_the_directory_is_named(monkeypatch, tmp_path):
    tmp_path.joinpath("file").touch()
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path / "file"))
    assert f"{tmp_path / 'file'} is no directory, so nothing is recorded: set FUSIONCACHE_DIR" in get_error("explain")


def test_a_command_line_cannot_break_a_table_or_the_terminal(monkeypatch):
    save_ledger(monkeypatch, make_ledger(CAST), argv=["a\nb\x1b[31m"])
    assert get_output("stats", "--runs").splitlines()[1].startswith("aaaaaaaa  a\\nb\\x1b[31m · 2023-11-14 22:13")
    assert "'a\\nb\\x1b[31m'\n" in get_output("stats", "-v")
    assert get_output("stats").startswith("a\\nb\\x1b[31m · ")


def test_a_run_that_ended_says_so(monkeypatch):
    save_run(monkeypatch)
    with closing(sqlite3.connect(record_path())) as database, database:
        ended = "json_set(CAST(content AS TEXT), '$.ended', json('true'), '$.updated', started + 90)"
        database.execute(f"UPDATE runs SET content = {ended}")
    assert "\nIt ended after 90 s.\n" in get_output("stats")


def test_names_of_runs():
    noon = 1_700_000_000.0
    for models, name in (
        (["A", "B", "C", "D"], "train.py · A, B and 2 more · 2023-11-14 22:13"),
        ([], "train.py · 2023-11-14 22:13"),
    ):
        assert Run("a", noon, 1, "train.py --depth", Stats(), models=tuple(models)).name == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/home/me/train.py -x", "train.py"),
        ("'/my home/train it.py'", "train it.py"),
        ("/lib/package/__main__.py run", "package"),
        ("-c", "python -c"),
        ("''", "python"),
        ("", "python"),
        ("/lib/ipykernel_launcher.py -f x", "notebook"),
        ("'not closed", "'not closed"),
    ],
)
def test_names_of_scripts(command, name):
    assert find_script(command) == name
