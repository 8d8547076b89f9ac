"""The command explain: the sentence first, then both templates side by side."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from recorded import STARTED, cast_template, chain_template, save, used
from sketch import Sketch

from fusioncache.cli.main import main
from fusioncache.ir import Key
from fusioncache.store import Store
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key


@pytest.fixture(autouse=True)
def _templates(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [chain_template("chain_b", options="fast_math off"), cast_template("cast")]
    save(monkeypatch, used(chain_template("chain_a", options="fast_math on"), *others), started=STARTED)


def call(*args: str) -> Result:
    return CliRunner().invoke(main, ["explain", *args])


def program(layout: str, constant: float = 2.0) -> Key:
    s = Sketch()
    graph = canonicalize(s.graph(s.op("mul", s.input(), constant))).graph
    return make_key(graph, {"backend": "eager", "layout": layout})


def keep(*keys: Key) -> None:
    store = Store.open()
    for key in keys:
        assert store.save(key, "eager", {"code": b"code"})
    store.close()


def test_the_sentence_comes_first_and_then_both_side_by_side():
    result = call("chain_a", "chain_b", "--width", "100")
    first, empty, a, b, *lines = result.stdout.splitlines()
    assert (first, empty) == ("They differ in the option fast_math: on in A, off in B.", "")
    assert a == f"A  {chain_template('', options='fast_math on').key.digest}  chain_a"
    assert b == f"B  {chain_template('', options='fast_math off').key.digest}  chain_b"
    assert [line for line in lines if " | " in line] == [f"{'options: fast_math on':48} | options: fast_math off"]
    assert all(len(line) <= 100 for line in lines)
    assert (result.stderr, result.exit_code) == ("", 0)


def test_without_another_one_the_nearest_is_taken():
    assert call("chain_a").stdout == call("chain_a", "chain_b").stdout
    assert "  chain_" in call("cast").stdout


def test_as_json():
    data = json.loads(call("chain_a", "chain_b", "--json").stdout)
    assert data["schema"] == 1
    assert (data["a"]["name"], data["b"]["name"], data["a"]["in"]) == ("chain_a", "chain_b", "record")
    assert data["sentence"] == "They differ in the option fast_math: on in A, off in B."
    change = {"ingredient": "options", "place": "the option fast_math", "a": "on", "b": "off", "op": None}
    assert data["changes"] == [change]
    assert {"a": "options: fast_math on", "mark": "|", "b": "options: fast_math off"} in data["rows"]


def test_a_template_and_itself():
    assert call("chain_a", "chain_a").stdout.startswith("They do not differ.\n")


def test_programs_of_the_store():
    one, turned, other = program("(2, 3) (3, 1)"), program("(2, 3) (1, 2)"), program("(2, 3) (3, 1)", 3.0)
    keep(one, turned, other)
    said = call(one.digest[:16], turned.digest).stdout.splitlines()
    assert said[0] == "They differ in the layout of input %0: (2, 3) (3, 1) in A, (2, 3) (1, 2) in B."
    assert said[2] == f"A  {one.digest}  (in the store)"
    data = json.loads(call(turned.digest, "--json").stdout)
    assert (data["b"]["digest"], data["b"]["in"]) == (one.digest, "store")


def test_a_template_and_a_program():
    keep(program("(2, 3) (3, 1)"))
    said = call("cast", program("(2, 3) (3, 1)").digest).stdout
    assert said.startswith("They differ in the dtype of input %0: bfloat16 in A, float32 in B, and in ")


def test_the_only_one_has_no_nearest():
    keep(program("(2, 3) (3, 1)"))
    result = call(program("(2, 3) (3, 1)").digest)
    assert result.exit_code == 1
    assert "is the only one in the store: there is nothing to compare it with" in result.stderr


@pytest.mark.parametrize("ids", [("nothing",), ("chain_a", "nothing")])
def test_an_unknown_id(ids):
    result = call(*ids)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no template in the record and no program in the store starts with 'nothing'" in result.stderr


def test_an_ambiguous_id():
    result = call("chain")
    assert result.exit_code == 1
    assert "'chain' is the start of 2 templates" in result.stderr
    assert call().exit_code == 2


def test_a_store_that_is_named_and_not_there(tmp_path):
    result = call("nothing", "--dir", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "there is no store in" in result.stderr
