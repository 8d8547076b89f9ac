"""Texts that commands take and print; and outputs without golden files: sources, and a model through thunderfx."""

import inspect
import json
import re
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from behind_dynamo import OwnNet, compile_behind_dynamo
from click.testing import CliRunner
from commands import CAST, CHAIN, FIRST_RUN, OTHER_RUN, call, get_error, get_output, save_other, save_run, save_two_runs
from recorded_templates import STARTED, make_cast_template, make_full_ledger, make_ledger, save_ledger
from report_records import HOSTILE
from saved_programs import SavedProgram
from signing_keys import make_signing_key

from fusioncache.backends.nvfuser import definition
from fusioncache.backends.script import write_script
from fusioncache.cli.console import AGE, BYTES
from fusioncache.cli.main import main
from fusioncache.cli.things import find_candidates, format_inputs
from fusioncache.humanize import escape_controls, format_duration
from fusioncache.ir import Const, Graph, NumberType, Op, Ref, Template, TensorType
from fusioncache.observe.record import database
from fusioncache.observe.record.observations import Run, find_script
from fusioncache.observe.record.stats import Stats
from fusioncache.store import Store
from fusioncache.template.key import make_key


def _name_run(models: str) -> str:
    run = Run("a", STARTED, 1, "train.py --depth", Stats(), models=tuple(models.split()))
    return run.name.partition(" · 2023-11-14")[0]


def _show_inputs(text: str) -> str:
    short = format_inputs(f"args 1\nargs.0 {text}\nargs.0.deep 3")
    assert (format_inputs(""), format_inputs(f"args 0 a\nkwargs.a {text}")) == ("", f"a={short}")
    return short


_KINDS: dict[str, Callable[[str], object]] = {
    "seconds": lambda text: format_duration(float(text)),
    "bytes": lambda text: BYTES.convert(text, None, None),
    "age": lambda text: AGE.convert(text, None, None),
    "inputs": _show_inputs,
    "models of a run": _name_run,
    "script": find_script,
    "one line": lambda text: escape_controls(json.loads(text)),
}


def _list_texts() -> Iterator[tuple[str, str, str]]:
    for section in Path(__file__).with_name("texts.txt").read_text().removeprefix("## ").split("\n## "):
        kind, *lines = section.splitlines()
        yield from ((kind, *line.split(" -> ")) for line in lines if line)


@pytest.mark.parametrize(("kind", "text", "shown"), list(_list_texts()))
def test_a_text_is_shown_as(kind, text, shown):
    assert str(_KINDS[kind](text)) == shown


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
    assert shown[0].endswith("  (run aaaaaaaa)") and "…" in shown[0]
    assert not any("\x1b" in line for line in shown)


def test_all_runs_are_counted_once_those_too_that_were_forgotten(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(database, "MOST_RUNS", 1)
        save_two_runs(monkeypatch)
    assert [run["id"] for run in json.loads(get_output("stats", "--runs", "--json"))["runs"]] == [OTHER_RUN]
    counts = {"since": STARTED, "runs": 2, "regions": 8, "hits": 3, "compiles": 4, "loads": 1}
    seconds = {"compile_seconds": 3.125, "load_seconds": 0.00390625, "saved_seconds": 6.08984375}
    assert json.loads(get_output("stats", "--json"))["lifetime"] == counts | seconds
    save_run(monkeypatch)  # it was deleted from the record, and continues
    assert len(json.loads(get_output("stats", "--runs", "--json"))["runs"]) == 2
    assert json.loads(get_output("stats", "--json"))["lifetime"]["regions"] == 8


_LONG = "a" * 300


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("prune --max-bytes " + "9" * 400, " is no size such as 500MB or 2GiB"),
        ("warm --lengths " + "9" * 5000, " are no lengths, such as 32:512:32 or 64,96."),
        (f"clear --dir {_LONG} -y", f"File name too long: '{_LONG}'"),
        (f"pack -o {_LONG} --force", f"{_LONG} cannot be written (File name too long): give another path"),
        (f"report -o {_LONG}", f"{_LONG} cannot be read (File name too long): give another path with -o"),
    ],
)
def test_what_is_too_long_is_an_error(monkeypatch, command, message):
    save_run(monkeypatch)
    PROGRAM.save(Store.open())
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", make_signing_key("ci").text)
    assert message in get_error(*command.split(), code=2 if "9" in command else 1)


def test_an_output_that_is_closed_or_lacks_letters_gets_what_it_can(monkeypatch):
    save_run(monkeypatch)
    monkeypatch.setenv("COLUMNS", "50")
    result = CliRunner(charset="latin-1").invoke(main, ["stats"])
    assert result.exit_code == 0 and "?" in result.stdout and "\xb7" in result.stdout
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["ls"], standalone_mode=False) is None


ALL = ("run", "template", "executable", "program", "family")
EXECUTABLE = make_key(CAST.graph, {"backend": "eager"})
PROGRAM = SavedProgram()


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        *((text, ["template"]) for text in (CHAIN.key.digest, CHAIN.key.digest[:6], CHAIN.name, "residual")),
        *((text, ["executable"]) for text in (EXECUTABLE.digest, EXECUTABLE.digest[:6], "other_1")),
        (f"{EXECUTABLE.digest}.eager", ["executable"]),
        (PROGRAM.make_key().digest, ["program", "program"]),
        (f"{PROGRAM.make_key().digest[:6]}-1", ["program"]),
        ("Llama", ["program", "program"]),
        *((text, ["run"]) for text in (FIRST_RUN, "train.py", "last")),
        *(("nosuch", []), ("", [])),
    ],
)
def test_what_an_id_stands_for(monkeypatch, wanted, kinds):
    save_two_runs(monkeypatch)
    store = Store.open()
    assert store.save(EXECUTABLE, "eager", {"code": b"x"}, name="convert_1")
    assert store.save(make_cast_template(options="same").key, "eager", {"code": b"y"}, name="other_1")
    PROGRAM.save(store)
    SavedProgram(slot="program-1").save(store)
    assert [one.kind for one in find_candidates(wanted, None, ALL)] == kinds


_MATRIX = TensorType("float32", (4, 4), "cpu")


def test_the_definition_is_for_the_gpu_or_an_error_says_what_is_missing(monkeypatch):
    pytest.importorskip("nvfuser_direct")
    save_run(monkeypatch)
    device, dtype = ("device", Const("device", "cpu")), ("dtype", Const("dtype", "float32"))
    full = Op("prims.full", ((Const("int", "4"), Const("int", "4")), Const("float", (2.0).hex())), (_MATRIX,))
    ops = (replace(full, kwargs=(device, dtype)), Op("prims.add", (Ref(0), Ref(1)), (_MATRIX,)))
    known = Graph((_MATRIX,), ops, (2,))
    odd = replace(known, ops=(*ops[:1], replace(ops[1], name="prims.nosuch")))
    templates = (Template(graph, make_key(graph, {}), name) for graph, name in ((known, "for_cpu"), (odd, "odd")))
    save_other(monkeypatch, make_ledger(*templates))
    assert "is_cpu=False" in get_output("show", "for_cpu", "--definition")
    assert "nvFuser has no definition for this template (KeyError: " in get_error("show", "odd", "--definition")
    monkeypatch.setattr(definition.importlib.util, "find_spec", lambda name: None)
    assert "it is not installed. Seen working: torch" in get_error("show", "convert", "--definition")


def test_a_script_of_every_sort_of_argument(monkeypatch, capsys, tmp_path):
    """Numbers, symbolic sizes, tuples, dtypes, infinities, a dropped result, a mask, and an operation of torch's."""
    vector = TensorType("float32", (Ref(2),), "cpu")
    ops = (
        Op("prims.mul", (Ref(1), Ref(0)), (vector,)),
        Op("prims.broadcast_in_dim", (Ref(3), (Const("int", "4"), Ref(2)), (Const("int", "1"),)), (_MATRIX,)),
        Op("prims.var_mean", (Ref(4), (Const("int", "0"),)), (None, vector), (("correction", Const("int", "1")),)),
        Op("prims.lt", (Ref(6), Const("float", "inf")), (TensorType("bool", (Ref(2),), "cpu"),)),
        Op("prims.full", ((Ref(2),), Const("float", (-0.0).hex())), (vector,), (
            ("device", Const("device", "cpu")), ("dtype", Const("dtype", "float32"))
        )),
        Op("torch.where", (Ref(7), Ref(6), Ref(8)), (vector,)),
    )  # fmt: skip
    path = tmp_path / "repro.py"
    path.write_text(write_script("all", Graph((NumberType("float"), vector), ops, (9, 6), 1), ()))
    assert not re.search(r"^\s*(?:import|from) fusioncache", path.read_text(), re.MULTILINE)
    monkeypatch.setattr(sys, "argv", [str(path), "--executor", "eager", "--calls", "0"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = runpy.run_path(str(path), run_name="__main__")
    assert "executor eager, device cpu" in capsys.readouterr().out
    number, values = names["arguments"]()
    chosen, mean = names["template"].__globals__["thunder"].jit(names["template"])(number, values)
    assert chosen.allclose(2 * values) and mean.allclose(2 * values)


_FIRST = OwnNet.forward.__code__.co_firstlineno
_LINES = {f"{inspect.getfile(OwnNet)}:{_FIRST + offset}" for offset in (1, 3)}
"""The lines of the model from which Thunder makes regions."""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Returns the output of each command, by its words, for two runs with inputs of different lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("dynamo"))
        patch.setenv("FUSIONCACHE_DIR", str(tmp_path_factory.mktemp("store")))
        patch.delenv("COLUMNS", raising=False)
        for length in (2, 3):
            compiled, transform = compile_behind_dynamo(OwnNet(), store=True, record=True, dynamic=False)
            compiled(torch.ones(length, 4)).sum().backward()
            transform.cache.write_record()
        first, second, *_ = (line.split()[0] for line in get_output("ls", "--programs").splitlines()[1:])
        calls = ["ls --programs", "ls", "diff", "stats", "stats -v", "stats --runs", "explain"]
        calls += [f"show {first}", f"explain {first}", f"explain {first} {second} --all"]
        found = {words: call(*words.split()).stdout for words in calls}
        assert call("report", "-o", "dynamo.html").exit_code == 0
        return {**found, "report": Path("dynamo.html").read_text(encoding="utf-8")}


def test_the_users_class_and_lines_are_named_and_the_class_of_graphs_is_not(outputs):
    assert not {name for name, text in outputs.items() if "GraphModule" in text}
    named = {name for name, text in outputs.items() if "OwnNet" in text}
    # A list of templates has names of operations, and a comparison of runs has their names.
    assert named == outputs.keys() - {"ls", "explain"}
    programs = outputs["ls --programs"]
    assert {line.split()[1] for line in programs.splitlines()[1:]} == {"OwnNet"}
    assert "OwnNet (part 1 of 2)" in programs and "OwnNet (from line " in programs
    assert "<h1>OwnNet</h1>" in outputs["report"]
    assert "eval_with_key" not in outputs["explain"] + outputs["report"]
    assert all(line in outputs["explain"] for line in _LINES)


def test_what_was_not_given_to_thunder_is_counted_with_the_reason(outputs):
    why = "sinc only has an automatic torch fallback in thunder"
    assert f"Dynamo 1 operation not given to Thunder: {why} (1)" in " ".join(outputs["stats"].split())
    assert "bypassed" not in outputs["stats"] and "No region was bypassed." in outputs["report"]
    assert f'<tr><th scope="row">{why}</th><td class="n">1</td></tr>' in outputs["report"]
    assert '1 operation was <a href="#not-given">not given to Thunder</a>: ' in outputs["report"]
