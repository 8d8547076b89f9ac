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
    drop_first_break,
    get_error,
    get_output,
    save_other,
    save_run,
    save_two_runs,
)
from recorded_templates import STARTED, make_cast_template, make_ledger, save_ledger

from fusioncache.record.ledger import Ledger

_PAD = " " * 62
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
def test_diff():
    text = drop_first_break(f"""
old  train.py · 2023-11-14 22:13  (run aaaaaaaa)
new  other.py · 2023-11-14 22:14  (run ab000000)

count                     old    new  change
regions                     7      2      -5
templates                   2      2      +0
hits                        3      0      -3
misses                      2      2      +0
compiles                    3      2      -1
loads                       1      0      -1
programs loaded             0      0      +0
programs made               0      0      +0
compile seconds         2.125  2.000  -0.125
load seconds            0.004  0.000  -0.004
loaded compile seconds  0.125  0.000  -0.125
saved seconds           6.090  0.000  -6.090
canonicalize seconds    0.031  0.000  -0.031
loaded program seconds  0.000  0.000  +0.000

id{_PAD}  name                           what            compile seconds
{_NEW.key.digest}  cast_new                       new                       1.000
{CHAIN.key.digest}  {CHAIN.name}         gone                      2.000
{CAST.key.digest}  {CAST.name}  compiled again            1.000
""")
    assert (
        get_output("diff")
        == get_output("diff", "aa")
        == get_output("diff", "aa", "ab")
        == get_output("diff", "train", "last")
        == text
    )


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
    ledger.count_load(CAST, 0.5, 28.5)
    save_other(monkeypatch, ledger)
    save_ledger(monkeypatch, ledger, run="ac" + "0" * 30, started=STARTED + 120)
    result = call("diff", "ab", "ac")
    assert "saved seconds           28.000  28.000  +0.000\n" in result.stdout
    assert result.stderr == "Both have the same templates, and the second compiled none of them.\n"
    assert CAST.name not in result.stdout


def test_it_takes_two_runs(monkeypatch):
    save_run(monkeypatch)
    assert "has one run, and a comparison needs two" in get_error("diff")
    assert "'f00', or a name with that in it: see 'fusioncache stats --runs'" in get_error("diff", "f00")
