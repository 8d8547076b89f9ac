"""The command ls, to the letter."""

import json
from dataclasses import replace

import pytest
from commands import CAST, CHAIN, FIRST_RUN, call, get_output, save_run
from recorded_templates import count_compile, make_cast_template, make_ledger, save_ledger
from store_contents import save as fill

from fusioncache.cli import overview as pages
from fusioncache.observe.record.ledger import Ledger
from fusioncache.store import Store, default_path, store
from fusioncache.template.key import make_key


def _names(*args: str) -> list[str]:
    return [template["name"] for template in json.loads(get_output("ls", *args, "--json"))["templates"]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--name", "tanh"], [CHAIN.name]),
        (["--text", "prims.convert"], [CAST.name]),
        (["--text", "nvfuser=0.2.36"], [CHAIN.name, CAST.name]),
        (["--text", "%"], [CHAIN.name, CAST.name]),
        (["--text", "PRIMS.CONVERT"], []),
        (["--name", "_"], [CHAIN.name, CAST.name]),
        (["--name", "\udcff"], []),
        (["--text", "prims", "--limit", "1"], [CHAIN.name]),
        (["--name", "convert", "--text", "tanh"], []),
        (["--sort", "name"], [CAST.name, CHAIN.name]),
        (["--sort", "size"], [CHAIN.name, CAST.name]),
        (["--sort", "hits"], [CHAIN.name, CAST.name]),
        (["--sort", "name", "--limit", "1"], [CAST.name]),
        (["--limit", "1"], [CHAIN.name]),
        (["--limit", "9" * 30], [CHAIN.name, CAST.name]),
    ],
)
def test_filters_and_orders(monkeypatch, options, expected):
    save_run(monkeypatch)
    found = call("ls", *options, "--json")
    assert [template["name"] for template in json.loads(found.stdout)["templates"]] == expected
    assert found.stderr == ("" if expected else f"None of the 2 templates of run {FIRST_RUN} matches.\n")


@pytest.mark.parametrize("text", ['a "quoted" \\', "\u00e9\u4e16", "two\nlines", "%_", "100"])
def test_a_text_is_found_however_it_is_written_down(monkeypatch, text):
    other, odd = make_cast_template("other", options="1.0"), make_cast_template("odd", options=f"before {text} after")
    save_ledger(monkeypatch, make_ledger(other, odd))
    assert _names("--text", text) == ["odd"]


def test_a_backend_is_the_whole_of_its_ingredient_and_of_no_other(monkeypatch):
    keys = {"one": {"backend": "eager"}, "two": {"backend": "eagerly"}, "three": {"options": "eager"}}
    save_ledger(
        monkeypatch,
        make_ledger(*(replace(CAST, key=make_key(CAST.graph, key), name=name) for name, key in keys.items())),
    )
    assert _names("--backend", "eager") == ["one"]


@pytest.mark.parametrize("sort", ["seconds", "regions", "hits", "name", "size"])
def test_among_equals_the_most_expensive_come_first(monkeypatch, sort):
    ledger = make_ledger(*(make_cast_template(name, options=name) for name in "cab"))
    count_compile(ledger, make_cast_template("b", options="b"), 2.0)
    save_ledger(monkeypatch, ledger)
    assert _names("--sort", sort) == (["a", "b", "c"] if sort == "name" else ["b", "a", "c"])


def test_ls_of_a_run_without_templates(monkeypatch):
    ledger = Ledger()
    ledger.count_bypass("unknown op")
    save_ledger(monkeypatch, ledger)
    result = call("ls")
    assert (result.exit_code, result.stdout.split()[:2]) == (0, ["id", "name"])
    assert result.stderr == f"Run {FIRST_RUN} has no templates: 'fusioncache stats' says what was bypassed and why.\n"


@pytest.fixture
def executables(monkeypatch):
    """Two executables in the store: the second newer by a minute, and three days old."""
    opened = Store.open()
    for number, created in ((1, 1000.0), (12, 1060.0)):
        with monkeypatch.context() as patch:
            patch.setattr(store.time, "time", lambda created=created: created)
            fill(opened, number, size=2940 * number)
    monkeypatch.setattr(pages.time, "time", lambda: 1060.0 + 3 * 86400)


@pytest.mark.usefixtures("executables")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sort", "size"], [12, 1]),
        (["--sort", "seconds"], [12, 1]),
        (["--sort", "name"], [1, 12]),
        (["--sort", "name", "--limit", "1"], [1]),
        (["--name", "12"], [12]),
        (["--backend", "eager"], [12, 1]),
        (["--backend", "nvfuser"], []),
    ],
)
def test_filters_and_orders_of_executables(options, expected):
    found = call("ls", "--store", *options, "--json")
    names = [executable["name"] for executable in json.loads(found.stdout)["executables"]]
    assert names == [f"template_{number}" for number in expected]
    assert found.stderr == ("" if expected else f"{default_path()} has 2 executables; none matches.\n")
