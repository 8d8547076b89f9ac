"""The command diff, to the letter."""

import json
import time

import pytest
from commands import (
    CAST,
    CHAIN,
    FIRST_RUN,
    OTHER_RUN,
    call,
    get_error,
    get_output,
    save_other,
    save_run,
    save_two_runs,
)
from recorded_templates import STARTED, count_load, make_cast_template, make_ledger, save_ledger

from fusioncache.observe.record.ledger import Ledger

_NEW = make_cast_template("cast_new", "nvfuser=0.2.37")


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def _runs(monkeypatch):
    save_run(monkeypatch)
    save_other(monkeypatch, make_ledger(CAST, _NEW))


@pytest.mark.usefixtures("_runs")
def test_diff_by_ids_names_and_places():
    text = get_output("diff")
    assert text == get_output("diff", "aa") == get_output("diff", "aa", "ab") == get_output("diff", "train", "last")
    assert f"{CAST.key.digest}  {CAST.name}  compiled again            1.000\n" in text


@pytest.mark.usefixtures("_runs")
def test_diff_as_json():
    data = json.loads(get_output("diff", "aa", "--json"))
    assert (data["schema"], data["old"], data["new"]) == (2, FIRST_RUN, OTHER_RUN)
    assert data["names"] == {"old": "train.py · 2023-11-14 22:13", "new": "other.py · 2023-11-14 22:14"}
    assert data["counts"]["regions"] == {"old": 7, "new": 2}
    assert data["counts"]["compile_seconds"] == {"old": 2.125, "new": 2.0}
    changed = {what: data[what] for what in ("new_templates", "gone_templates", "compiled_again")}
    assert {what: [template["name"] for template in found] for what, found in changed.items()} == {
        "new_templates": ["cast_new"],
        "gone_templates": [CHAIN.name],
        "compiled_again": [CAST.name],
    }


@pytest.mark.usefixtures("_runs")
def test_the_other_way_round():
    data = json.loads(get_output("diff", "ab", "aa", "--json"))
    assert [template["name"] for template in data["new_templates"]] == [CHAIN.name]
    assert [template["name"] for template in data["gone_templates"]] == ["cast_new"]


def test_nothing_changed(monkeypatch):
    save_two_runs(monkeypatch)
    ledger = Ledger()
    ledger.count_region(CAST, (), hit=False)
    count_load(ledger, CAST, 0.5, 28.5)
    save_other(monkeypatch, ledger)
    save_ledger(monkeypatch, ledger, run="ac" + "0" * 30, started=STARTED + 120)
    result = call("diff", "ab", "ac")
    assert "saved seconds                       28.000  28.000  +0.000\n" in result.stdout
    assert result.stderr == "Both have the same templates, and the new run compiled none of them.\n"
    assert CAST.name not in result.stdout


def test_it_takes_two_runs(monkeypatch):
    save_run(monkeypatch)
    assert "has one run, and a comparison needs two" in get_error("diff")
    assert "'f00'. Give the start of one: 'fusioncache stats --runs' lists runs" in get_error("diff", "f00")
