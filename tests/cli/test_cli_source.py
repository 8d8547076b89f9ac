"""What show prints as source: definition, generated code, and the script that runs a template alone."""

import re
import runpy
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
from commands import CHAIN, call, get_error, get_output, save_other, save_run
from recorded_templates import make_ledger

from fusioncache.backends.nvfuser import definition
from fusioncache.backends.script import write_script
from fusioncache.cli import console
from fusioncache.ir import Const, Graph, NumberType, Op, Ref, Template, TensorType
from fusioncache.store import Store
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline

_MATRIX = TensorType("float32", (4, 4), "cpu")


@pytest.fixture(autouse=True)
def _run(monkeypatch):
    save_run(monkeypatch)


def test_the_definition_is_for_the_gpu_or_an_error_says_what_is_missing(monkeypatch):
    pytest.importorskip("nvfuser_direct")
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


@pytest.mark.parametrize(
    ("backend", "name", "text"),
    [("inductor", "kernels.cpp", "int64_t x;"), ("nvfuser", "kernels.cu", "__global__ void k();")],
)
def test_the_source_of_kernels_in_colours(monkeypatch, backend, name, text):
    """Both have a word that only the right language knows."""
    key = make_key(inline(CHAIN.graph, (7,)), {"layout": "any"})
    assert Store.open().save(key, backend, {name: text.encode()})
    monkeypatch.setattr(console, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert f"m{text.split()[0]}\x1b[39" in call("show", "residual", "--code", color=True).stdout
