"""What show prints as source: definition, generated code, and the script that runs a template alone."""

import json
import runpy
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
from commands import CHAIN, call, get_error, get_output, save_other, save_run
from recorded_templates import make_ledger, save_ledger

from fusioncache.backends.script import write_script
from fusioncache.cli import console as highlight
from fusioncache.ir import Const, Graph, Key, NumberType, Op, Ref, Template, TensorType
from fusioncache.store import Store, default_path
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline

_MATRIX = TensorType("float32", (4, 4), "cpu")


@pytest.fixture(autouse=True)
def _run(monkeypatch):
    save_run(monkeypatch)


# --definition


def test_a_template_for_the_cpu_is_defined_for_the_gpu(monkeypatch):
    pytest.importorskip("nvfuser_direct")
    device, dtype = ("device", Const("device", "cpu")), ("dtype", Const("dtype", "float32"))
    full = Op("prims.full", ((Const("int", "4"), Const("int", "4")), Const("float", (2.0).hex())), (_MATRIX,))
    ops = (replace(full, kwargs=(device, dtype)), Op("prims.add", (Ref(0), Ref(1)), (_MATRIX,)))
    graph = Graph((_MATRIX,), ops, (2,))
    save_other(monkeypatch, make_ledger(Template(graph, make_key(graph, {}), "for_cpu")))
    assert "is_cpu=False" in get_output("show", "for_cpu", "--definition")


def test_what_nvfuser_cannot_do_has_no_definition(monkeypatch):
    pytest.importorskip("nvfuser_direct")
    graph = Graph((_MATRIX,), (Op("prims.nosuch", (Ref(0),), (_MATRIX,)),), (1,))
    save_other(monkeypatch, make_ledger(Template(graph, make_key(graph, {}), "odd")))
    assert "nvFuser has no definition for this template (KeyError: " in get_error("show", "odd", "--definition")


def test_the_definition_needs_nvfuser(monkeypatch):
    from fusioncache.backends.nvfuser import definition

    monkeypatch.setattr(definition.importlib.util, "find_spec", lambda name: None)
    assert "it is not installed. Seen working: torch" in get_error("show", "convert", "--definition")


# --repro


def _ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path, *options: str) -> dict:
    monkeypatch.setattr(sys, "argv", [str(path), *options])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = runpy.run_path(str(path), run_name="__main__")
    assert "executor eager, device cpu" in capsys.readouterr().out
    return names


def test_the_script_does_not_need_fusioncache():
    text = get_output("show", "residual", "--repro")
    assert "import fusioncache" not in text
    assert "from fusioncache" not in text
    assert json.loads(get_output("show", "residual", "--repro", "--json"))["repro"] == text


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
    names = _ran(monkeypatch, capsys, path, "--executor", "eager", "--calls", "0")
    number, values = names["arguments"]()
    chosen, mean = names["template"].__globals__["thunder"].jit(names["template"])(number, values)
    assert chosen.allclose(2 * values)
    assert mean.allclose(2 * values)


# --code


def _keep(graph: Graph, backend: str, artifacts: dict[str, bytes], **environment: str) -> Key:
    key = make_key(graph, {"layout": "any", **environment})
    store = Store.open()
    assert store.save(key, backend, artifacts)
    return key


def test_the_stored_code():
    key = _keep(
        inline(CHAIN.graph, (2,)), "inductor", {"wrapper.py": b"def call(args):\n    pass\n", "kernel-0.so": b"x"}
    )
    other = Op("prims.cos", (Ref(0),), (_MATRIX,))
    _keep(Graph((_MATRIX,), (other,), (1,)), "inductor", {"wrapper.py": b"not this one"})
    result = call("show", "residual", "--code")
    assert result.exit_code == 0
    head = f"# {key.digest}.inductor\n# kernel-0.so 1 B, wrapper.py 25 B\n"
    assert result.stdout == f"{head}\n# wrapper.py\ndef call(args):\n    pass\n"
    assert "1 executable was stored without source." in result.stderr
    assert "TORCH_LOGS=output_code" in result.stderr


@pytest.mark.parametrize(
    ("backend", "machine_code", "source"),
    [("inductor", "kernel-0.so", "kernels.cpp"), ("nvfuser", "0.cubin", "kernels.cu")],
)
def test_the_source_of_kernels(backend, machine_code, source):
    """Plain where it is piped, and without what a terminal would obey."""
    key = _keep(inline(CHAIN.graph, (7,)), backend, {machine_code: b"\xff", source: b"// k\nint x;\t// \x1b[2J\n"})
    head = f"# {key.digest}.{backend}\n# {machine_code} 1 B, {source} 20 B\n"
    assert get_output("show", "residual", "--code") == f"{head}\n# {source}\n// k\nint x;\t// \\x1b[2J\n"
    (executable,) = json.loads(get_output("show", "residual", "--code", "--json"))["code"]
    assert executable["sources"] == {source: "// k\nint x;\t// \x1b[2J\n"}


@pytest.mark.parametrize(("name", "text"), [("kernels.cpp", "int64_t x;"), ("kernels.cu", "__global__ void k();")])
def test_the_source_of_kernels_in_colours(monkeypatch, name, text):
    """Both have a word that only the right language knows."""
    _keep(inline(CHAIN.graph, (7,)), "nvfuser" if name.endswith("cu") else "inductor", {name: text.encode()})
    monkeypatch.setattr(highlight, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    word = text.split()[0]
    assert f"m{word}\x1b[39" in call("show", "residual", "--code", color=True).stdout


def test_damaged_source_hides_nothing_else():
    _keep(inline(CHAIN.graph, (7,)), "inductor", {"kernel-0.so": b"x", "kernels.cpp": b"C++", "wrapper.py": b"pass"})
    (damaged,) = [
        path for path in (default_path() / "objects").rglob("*") if path.is_file() and path.read_bytes() == b"C++"
    ]
    damaged.chmod(0o600)
    damaged.write_bytes(b"C--")
    result = call("show", "residual", "--code")
    assert "# kernels.cpp is damaged" in result.stdout
    assert result.stdout.endswith("# wrapper.py\npass\n")
    assert "1 executable was stored without source." in result.stderr
    assert result.exit_code == 0


# What cannot be read


def test_a_template_of_another_format(monkeypatch):
    from fusioncache.ir import Ingredient

    graph = Graph((_MATRIX,), (Op("prims.cos", (Ref(0),), (_MATRIX,)),), (1,))
    parts = make_key(graph, {}).ingredients
    odd = tuple(Ingredient(part.name, "cos of it" if part.name == "ops" else part.text, part.digest) for part in parts)
    save_ledger(monkeypatch, make_ledger(Template(graph, Key("f" * 64, "odd", odd), "odd")))
    assert "what is recorded of odd cannot be read" in get_error("show", "odd", "--repro")
