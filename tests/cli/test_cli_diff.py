"""The command diff, to the letter."""

import json
import time

import pytest
from commands import (
    CAST,
    CHAIN,
    call,
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
