"""The command diff, to the letter."""

import time

import pytest
from commands import (
    CAST,
    call,
    save_other,
    save_two_runs,
)
from recorded_templates import STARTED, count_load, save_ledger

from fusioncache.observe.record.ledger import Ledger


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


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
