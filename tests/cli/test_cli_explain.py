"""The command explain: the sentence first, then both templates side by side."""

import pytest
from click.testing import CliRunner, Result
from drawn_regions import Sketch
from recorded_templates import (
    STARTED,
    count_load,
    make_cast_template,
    make_chain_template,
    make_ledger,
    save_ledger,
)

from fusioncache.cli.main import main
from fusioncache.ir import Key
from fusioncache.observe.record.ledger import Ledger
from fusioncache.store import Store
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key


@pytest.fixture(autouse=True)
def _templates(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [make_chain_template("chain_b", options="fast_math off"), make_cast_template("cast")]
    save_ledger(
        monkeypatch, make_ledger(make_chain_template("chain_a", options="fast_math on"), *others), started=STARTED
    )


def call(*args: str) -> Result:
    return CliRunner().invoke(main, ["explain", *args])


def executable(layout: str, constant: float = 2.0) -> Key:
    s = Sketch()
    graph = canonicalize(s.graph(s.op("mul", s.input(), constant))).graph
    return make_key(graph, {"backend": "eager", "layout": layout})


def keep(*keys: Key) -> None:
    store = Store.open()
    for key in keys:
        assert store.save(key, "eager", {"code": b"code"})


def test_without_another_one_the_nearest_is_taken():
    assert call("chain_a").stdout == call("chain_a", "chain_b").stdout
    assert "  chain_" in call("cast").stdout


def test_the_only_one_has_no_nearest():
    keep(executable("(2, 3) (3, 1)"))
    result = call(executable("(2, 3) (3, 1)").digest)
    assert result.exit_code == 1
    assert "is the only executable in the store: there is nothing to compare it with" in result.stderr


def test_a_run_that_compiled_nothing(monkeypatch):
    ledger = Ledger()
    ledger.count_region(make_cast_template("cast"), (), hit=False)
    count_load(ledger, make_cast_template("cast"), 0.001)
    save_ledger(monkeypatch, ledger, run="c" * 32, started=STARTED + 60)
    assert call().stdout.startswith("run cccccccccccc (train.py --depth), 1 template: 0 compiled, 1 loaded")
    save_ledger(monkeypatch, without_templates(), run="d" * 32, started=STARTED + 120)
    result = call()
    assert (result.exit_code, result.stdout) == (0, "")
    assert "has no templates: 'fusioncache stats' says what was bypassed and why" in result.stderr


def without_templates() -> Ledger:
    ledger = Ledger()
    ledger.count_bypass("unknown op")
    return ledger
