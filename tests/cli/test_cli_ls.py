"""The command ls, to the letter."""

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import replace

import pytest
from commands import CAST, CHAIN, FIRST_RUN, call, get_error, get_output, save_run, save_two_runs
from recorded_templates import count_compile, make_cast_template, make_chain_template, make_ledger, save_ledger
from store_contents import make_numbered_key
from store_contents import save as fill

from fusioncache.cli import overview as pages
from fusioncache.cli.console import shorten
from fusioncache.observe.record.database import record_path
from fusioncache.observe.record.ledger import Ledger
from fusioncache.store import Store, default_path, store
from fusioncache.template.key import make_key

_PAD = " " * 62


def _names(*args: str) -> list[str]:
    return [template["name"] for template in json.loads(get_output("ls", *args, "--json"))["templates"]]


def test_ls_as_json(monkeypatch):
    save_run(monkeypatch)
    counts = {"hits": 3, "arities": [[1], [2], [3], [7]], "compiles": 2, "compile_seconds": 2.0}
    chain = {"ops": 3, "regions": 4, **counts, "loads": 0, "load_seconds": 0.0, "loaded_compile_seconds": 0.0}
    counts = {"hits": 0, "arities": [[]], "compiles": 1, "compile_seconds": 0.125}
    cast = {"ops": 1, "regions": 1, **counts, "loads": 1, "load_seconds": 0.00390625, "loaded_compile_seconds": 0.125}
    assert json.loads(get_output("ls", "--json")) == {
        "schema": 2,
        "run": FIRST_RUN,
        "templates": [
            {"digest": CHAIN.key.digest, "name": CHAIN.name, **chain},
            {"digest": CAST.key.digest, "name": CAST.name, **cast},
        ],
    }


def test_ls_of_another_run(monkeypatch):
    save_two_runs(monkeypatch)
    assert _names() == [CAST.name]
    assert _names("--run", "aa") == [CHAIN.name, CAST.name]


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


def test_the_backend_is_an_ingredient(monkeypatch):
    with_backend = replace(CAST, key=make_key(CAST.graph, {"backend": "eager"}), name="eager_cast")
    save_ledger(monkeypatch, make_ledger(CHAIN, with_backend))
    assert _names("--backend", "eager") == ["eager_cast"]


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


def test_a_list_reads_no_ingredients(monkeypatch):
    save_run(monkeypatch)
    expected = get_output("ls")
    with closing(sqlite3.connect(record_path())) as database, database:
        database.execute("UPDATE templates SET content = 'nonsense'")
    assert get_output("ls") == expected
    assert "cannot be read" in get_error("ls", "--text", "tanh")


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
def test_the_executables_of_the_store_as_json():
    data = json.loads(get_output("ls", "--store", "--limit", "1", "--json"))
    (executable,) = data.pop("executables")
    assert data == {"schema": 2, "store": str(default_path())}
    assert executable.pop("pid") > 0
    assert isinstance(executable.pop("host"), str) and executable.pop("used") > 0
    assert 35340 < executable.pop("size") < 37000
    expected = {"name": "template_12", "created": 1060.0, "seconds": 12.0, "artifacts": 3, "refused": None}
    digest = make_numbered_key(12).digest
    assert executable == {"id": digest[:12], "digest": digest, "backend": "eager", **expected}


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


_REASON = "a wrapper that calls mm, which has no source that could be built again"


@pytest.fixture
def refused():
    """A note that the third executable cannot be kept."""
    opened = Store.open()
    assert opened.save(make_numbered_key(3), "inductor", {"refused": _REASON.encode()}, name="template_3")


@pytest.mark.filterwarnings("ignore:fusioncache. what happens to the store is not recorded")
@pytest.mark.usefixtures("executables", "refused")
def test_of_what_is_not_kept_the_store_says_why():
    head, *rows, empty, why = get_output("ls", "--store").splitlines()
    assert head.endswith("  seconds  stored")
    assert [row.endswith("  no") for row in rows] == ["template_3" in row for row in rows]
    assert (empty, why) == ("", f"1 of 3 cannot be stored, so each process compiles them: {_REASON}")
    data = json.loads(get_output("ls", "--store", "--json"))["executables"]
    reasons = {"template_1": None, "template_12": None, "template_3": _REASON}
    assert {executable["name"]: executable["refused"] for executable in data} == reasons


@pytest.fixture
def long_names(monkeypatch):
    """Templates and executables whose names are as long as they get, with long counts."""
    names = [f"residual_scaled_dot_product_attention_{word}_{word}_0123456{word[0]}" for word in ("softmax", "tanh")]
    ledger = Ledger()
    for name in names:
        template = make_chain_template(name, options=name)
        for arity in range(1, 40, 2):
            ledger.count_region(template, (arity,), hit=arity > 1)
        count_compile(ledger, template, 12345.678)
    save_ledger(monkeypatch, ledger)
    opened = Store.open()
    for number, name in enumerate(names):
        assert opened.save(make_numbered_key(number), "inductor", {"code": b"x" * 99_999}, name=name, seconds=1234.5)
    assert opened.save(make_numbered_key(9), "inductor", {"refused": _REASON.encode()}, name=names[0])


@pytest.mark.usefixtures("long_names")
@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 400])
@pytest.mark.parametrize("command", [("ls",), ("ls", "--store")], ids=" ".join)
def test_no_line_is_wider_than_the_terminal_and_a_wider_one_shows_more(monkeypatch, columns, command):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # nothing gets a second older between two outputs
    monkeypatch.setenv("COLUMNS", str(columns))
    found = _json(*command)
    shown = get_output(*command).splitlines()
    assert max(map(len, shown)) <= max(columns, 24)
    head, *rows = shown[: len(found) + 1]
    assert all(one["digest"].startswith(row[:12]) for one, row in zip(found, rows, strict=True))
    if columns >= 60:
        assert {"id", "name", "seconds"} <= set(head.split())
    if columns >= 80:
        assert all(one["name"][-9:] in row for one, row in zip(found, rows, strict=True))
    assert ("…" in "".join(rows)) == (columns < 400)
    monkeypatch.delenv("COLUMNS")
    whole = get_output(*command)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert get_output(*command, "--wide") == whole
    assert all(one["digest"] in whole and one["name"] in whole for one in _json(*command))


def _json(*command: str) -> list[dict[str, str]]:
    data = json.loads(get_output(*command, "--json"))
    found: list[dict[str, str]] = data.get("templates") or data["executables"]
    return found


@pytest.mark.parametrize(
    ("width", "text"), [(9, "abcdefghi"), (8, "abcd…ghi"), (5, "ab…hi"), (2, "a…"), (1, "…"), (0, "")]
)
def test_a_name_is_cut_in_its_middle(width, text):
    assert shorten("abcdefghi", width) == text


def test_another_store(tmp_path):
    opened = Store.open(tmp_path / "there")
    fill(opened, 3)
    assert "template_3" in get_output("ls", "--store", "--dir", str(tmp_path / "there"))


@pytest.mark.parametrize(
    "options",
    [("--store", "--run", "a"), ("--store", "--text", "x"), ("--store", "--sort", "hits"), ("--dir", "x")],
    ids=" ".join,
)
def test_what_is_about_templates_is_not_about_programs(options):
    assert "--store" in get_error("ls", *options, code=2)
