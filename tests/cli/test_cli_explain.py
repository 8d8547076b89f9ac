"""The command explain: the sentence first, then both templates side by side."""

import json

import pytest
from click.testing import CliRunner, Result
from drawn_regions import Sketch
from recorded_templates import (
    STARTED,
    count_compile,
    count_load,
    make_cast_template,
    make_chain_template,
    make_ledger,
    save_ledger,
)

from fusioncache.cli import comparison
from fusioncache.cli.main import main
from fusioncache.ir import Key, Template
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import Line, RegionRecord, Source
from fusioncache.store import Store
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline


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


def test_the_sentence_comes_first_and_then_both_side_by_side():
    result = call("chain_a", "chain_b", "--width", "100")
    first, empty, a, b, *lines = result.stdout.splitlines()
    assert (first, empty) == ("They differ in the option fast_math: on in A, off in B.", "")
    assert a == f"A  {make_chain_template('', options='fast_math on').key.digest}  chain_a"
    assert b == f"B  {make_chain_template('', options='fast_math off').key.digest}  chain_b"
    assert [line for line in lines if " | " in line] == [f"{'options: fast_math on':48} | options: fast_math off"]
    assert all(len(line) <= 100 for line in lines)
    assert (result.stderr, result.exit_code) == ("", 0)


def test_without_another_one_the_nearest_is_taken():
    assert call("chain_a").stdout == call("chain_a", "chain_b").stdout
    assert "  chain_" in call("cast").stdout


def test_as_json():
    data = json.loads(call("chain_a", "chain_b", "--json").stdout)
    assert data["schema"] == 2
    assert (data["a"]["name"], data["b"]["name"], data["a"]["in"]) == ("chain_a", "chain_b", "record")
    assert data["sentence"] == "They differ in the option fast_math: on in A, off in B."
    change = {"ingredient": "options", "place": "the option fast_math", "a": "on", "b": "off", "op": None}
    assert data["changes"] == [change]
    assert {"a": "options: fast_math on", "mark": "|", "b": "options: fast_math off"} in data["rows"]


def test_a_template_and_itself():
    assert call("chain_a", "chain_a").stdout.startswith("Both IDs name the same template: ")


def test_executables_of_the_store():
    one, turned, other = executable("(2, 3) (3, 1)"), executable("(2, 3) (1, 2)"), executable("(2, 3) (3, 1)", 3.0)
    keep(one, turned, other)
    said = call(one.digest[:16], turned.digest).stdout.splitlines()
    assert said[0] == "They differ in the layout of input %0: (2, 3) (3, 1) in A, (2, 3) (1, 2) in B."
    assert said[2] == f"A  {one.digest}  {one.digest[:12]} (an executable in the store)"
    data = json.loads(call(turned.digest, "--json").stdout)
    assert (data["b"]["digest"], data["b"]["in"]) == (one.digest, "store")


def test_a_template_and_an_executable():
    keep(executable("(2, 3) (3, 1)"))
    said = call("cast", executable("(2, 3) (3, 1)").digest).stdout
    assert said.startswith("They differ in the dtype of input %0: bfloat16 in A, float32 in B, and in ")


def test_the_only_one_has_no_nearest():
    keep(executable("(2, 3) (3, 1)"))
    result = call(executable("(2, 3) (3, 1)").digest)
    assert result.exit_code == 1
    assert "is the only executable in the store: there is nothing to compare it with" in result.stderr


@pytest.mark.parametrize("ids", [("nothing",), ("chain_a", "nothing")])
def test_an_unknown_id(ids):
    result = call(*ids)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no ID or name starts with 'nothing'" in result.stderr


def test_an_ambiguous_id():
    result = call("chain")
    assert result.exit_code == 1
    assert "'chain' stands for 2 templates" in result.stderr


def test_a_store_that_is_named_and_not_there(tmp_path):
    result = call("nothing", "--dir", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "there is no store in" in result.stderr


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records a run that compiled one template again, and a new one; loaded one, and did not call the last."""
    ledger = make_ledger(make_chain_template("chain_a", options="fast_math on"))
    new = make_chain_template("chain_c", options="fast_math odd")
    ledger.count_region(new, (2,), hit=False)
    count_compile(ledger, new, 0.25)
    count_compile(ledger, new, 0.25)
    cast, last = make_cast_template("cast"), make_cast_template("last", options="other")
    for template in (cast, last):
        ledger.count_region(template, (), hit=False)
    count_load(ledger, cast, 0.001)
    where = Source("blocks.2", 2, (Line("/home/me/model.py", 31),))
    digest = new.key.digest
    ledger.history.add(
        RegionRecord("M", "forward", 0, 1, "nvFusion0", digest, "miss", None, (2,), "inline", where, 3, 2, 1)
    )
    save_ledger(monkeypatch, ledger, run="b" * 32, started=STARTED + 60)


def test_the_misses_of_the_last_run(monkeypatch):
    later(monkeypatch)
    a, c = (make_chain_template(options=f"fast_math {how}").key.digest[:12] for how in ("on", "odd"))
    result = call()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{c}  chain_c  (2 compiles, 500 ms)",
        "  The nearest is chain_b. They differ in the option fast_math: odd here, off there.",
        "  blocks.2, forward: /home/me/model.py:31",
        "",
        f"{a}  chain_a  (1 compile, 1 s)",
        f"  {comparison.AGAIN}",
        "",
        "2 of 4 templates compiled, 1 loaded from the store, 1 not called, or with the code of another "
        "template in run bbbbbbbbbbbb (train.py --depth)",
    ]


def test_the_misses_of_another_run_are_compared_with_what_it_knew(monkeypatch):
    later(monkeypatch)
    text = call("--run", "aa").stdout
    assert (
        "chain_b  (1 compile, 1 s)\n  The nearest is chain_a. They differ in the option fast_math: off here, on "
        in text
    )
    assert "cast  (1 compile, 1 s)\n  No template was known before.\n" in text
    assert "chain_c" not in text
    assert text.splitlines()[-1] == "3 of 3 templates compiled in run aaaaaaaaaaaa (train.py --depth)"


def test_the_misses_as_json(monkeypatch):
    later(monkeypatch)
    keep_note(make_chain_template(options="fast_math odd"), "a reason")
    data = json.loads(call("--json").stdout)
    new, again = data.pop("misses")
    cast, last = make_cast_template("cast").key.digest, make_cast_template("last", options="other").key.digest
    assert data.pop("programs") == {"loaded": 0, "made": 0, "refused": {}}
    assert data == {"schema": 2, "run": "b" * 32, "loaded": [cast], "others": [last]}
    assert (new["nearest"], new["again"]) == (make_chain_template(options="fast_math off").key.digest, False)
    assert new["places"] == [{"place": "blocks.2, forward", "file": "/home/me/model.py", "line": 31}]
    assert [change["place"] for change in new["changes"]] == ["the option fast_math"]
    assert new["not_kept"] == {"a reason": 1}
    assert (again["nearest"], again["again"], again["sentence"]) == (None, True, comparison.AGAIN)
    assert "\n  not stored: a reason\n" in call().stdout


def keep_note(template: Template, reason: str) -> None:
    store = Store.open()
    key = make_key(inline(template.graph, (2,)), {"backend": "eager"})
    assert store.save(key, "eager", {"refused": reason.encode()})


def test_a_run_that_compiled_nothing(monkeypatch):
    ledger = Ledger()
    ledger.count_region(make_cast_template("cast"), (), hit=False)
    count_load(ledger, make_cast_template("cast"), 0.001)
    save_ledger(monkeypatch, ledger, run="c" * 32, started=STARTED + 60)
    assert call().stdout.startswith("0 of 1 template compiled, 1 loaded from the store in run cccccccccccc")
    save_ledger(monkeypatch, without_templates(), run="d" * 32, started=STARTED + 120)
    result = call()
    assert (result.exit_code, result.stdout) == (0, "")
    assert "has no templates: 'fusioncache stats' says what was bypassed and why" in result.stderr


def without_templates() -> Ledger:
    ledger = Ledger()
    ledger.count_bypass("unknown op")
    return ledger


@pytest.mark.parametrize("options", [("--width", "80"), ("chain_a", "--run", "aa")], ids=" ".join)
def test_options_that_do_not_fit(options):
    assert call(*options).exit_code == 2
