"""What of TorchInductor's code is not kept, where what is kept does not fit, and what its key depends on."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drawn_regions import Sketch
from inductor_artifacts import CASES, artifacts_of, made, sum_of_two, tensor, two
from torch.utils._python_dispatch import TorchDispatchMode

from fusioncache.backends.api import Compiled
from fusioncache.backends.inductor import artifacts as compiled
from fusioncache.backends.inductor import artifacts as files
from fusioncache.backends.inductor import artifacts as language
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Const, Declined, Graph, NumberType, TensorType

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


class Stub(Inductor):
    """Compiles nothing, and says so."""

    def compile(self, graph: Graph, args: Sequence[Any]) -> Any:
        return "compiled by Inductor"


def in_place() -> tuple[Graph, list[Any]]:
    s = Sketch()
    x, y = s.input(tensor("float32", 4, 6)), s.input(tensor("float32", 4, 6))
    return s.graph(s.op("copy_", s.op("add", x, y), x, grad_enabled=False)), two()


def numbers() -> tuple[Graph, list[Any]]:
    s = Sketch()
    x, n = s.input(tensor("float32", 4, 6)), s.input(NumberType("float"))
    return s.graph(s.op("mul", x, n)), [two()[0], 2.0]


def made_elsewhere() -> tuple[Graph, list[Any]]:
    s = Sketch()
    kind = {"device": Const("device", "cuda:0"), "dtype": Const("dtype", "float32")}
    return s.graph(s.op("full", (2,), 1.0, **kind, type_=TensorType("float32", (2,), "cuda"))), []


def subclass() -> tuple[Graph, list[Any]]:
    class Own(torch.Tensor):
        pass

    return sum_of_two(), [two()[0], two()[1].as_subclass(Own)]


def on_meta() -> tuple[Graph, list[Any]]:
    return sum_of_two(), [value.to("meta") for value in two()]


def negated() -> tuple[Graph, list[Any]]:
    return sum_of_two(), [two()[0], torch.randn(4, 6, dtype=torch.complex64).conj().imag]


@pytest.mark.parametrize(
    ("case", "reason", "lasting"),
    [
        (in_place, "in-place effects", True),
        (numbers, "a number among the inputs", True),
        (made_elsewhere, "a tensor that is not on the CPU", True),
        (subclass, "an argument of type Own", False),
        (on_meta, "a tensor that is not on the CPU", True),
        (negated, "a tensor that is sparse, quantized or otherwise special", False),
    ],
)
def test_what_cannot_be_kept_is_compiled_as_ever_and_says_why(case, reason, lasting):
    assert Stub().persist(*case()) == Compiled("compiled by Inductor", None, reason, lasting)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def test_what_a_mode_may_have_changed_is_not_kept():
    with Watching():
        made = Stub().persist(*CASES["two"]())
    assert made == Compiled("compiled by Inductor", None, "the mode Watching", lasting=False)


def test_what_fails_only_where_it_is_to_be_kept_is_compiled_as_ever(monkeypatch):
    def fail(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(compiled, "compile_graph", fail)
    made = Stub().persist(*CASES["two"]())
    assert made == Compiled(
        "compiled by Inductor", None, "AssertionError where its code is to be stored", lasting=False
    )


def test_a_wrapper_that_calls_other_things_is_not_kept():
    """As TorchInductor writes it for an operation that it leaves to torch."""
    source = (
        "def call(args):\n    a, = args\n    args.clear()\n    b = torch.ops.aten.sort.default(a)\n    return (b, )\n"
    )
    wrapper, outputs = compiled.read_wrapper(source)
    assert outputs == 1
    with pytest.raises(Declined, match="a wrapper that calls default"):
        language.check_wrapper(wrapper, {})


@pytest.mark.parametrize(
    "call",
    ["mm(a, a)", "mm(a, b, out=c, other=1)", "convolution(a, b)", "mm.__self__(a)", "mm(a, **b)", "__class__(a)"],
)
def test_products_are_called_only_as_torchinductor_does(call):
    wrapper = "def call(args):\n    a, b = args\n    c = {}\n    return [c]\n"
    good = call == "mm(a, a)"
    with nullcontext() if good else pytest.raises(Declined, match="a wrapper that"):
        language.check_wrapper(wrapper.format(f"extern_kernels.{call}"), {})
    with pytest.raises(Declined, match="a wrapper that"):
        language.check_wrapper(wrapper.format(f"a.{call}"), {})


def test_a_product_that_was_replaced_is_not_kept():
    own = {name: getattr(torch, name) for name in language.OPERATIONS}
    compiled.check_operations(SimpleNamespace(**own))
    compiled.check_operations(None)  # a wrapper without any
    for name in own:
        with pytest.raises(Declined, match="an operation that was replaced"):
            compiled.check_operations(SimpleNamespace(**{**own, name: torch.add}))


def test_a_library_is_private_and_gone_once_it_is_loaded(tmp_path, monkeypatch):
    artifacts, seen = artifacts_of(made("two")), []  # which imports TorchInductor
    load = files.load_library

    def watching(library: bytes, folder: Path) -> Any:
        seen.append((folder.parent, folder.stat().st_mode & 0o777))
        return load(library, folder)

    monkeypatch.setattr(files, "load_library", watching)
    before = {name for name in sys.modules if "kernel" in name}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files.load_module.cache_clear()
    Inductor().load(artifacts, *CASES["two"]())
    assert seen == [(tmp_path, 0o700)]
    assert not list(tmp_path.iterdir())
    assert {name for name in sys.modules if "kernel" in name} == before


@pytest.mark.parametrize(
    "args",
    [
        [torch.zeros(4, 6), torch.zeros(6, 4).t()],
        [torch.zeros(4, 6), torch.zeros(4, 7)],
        [torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.float64)],
        [torch.zeros(4, 6)],
        [torch.zeros(4, 6), torch.zeros(4, 6, device="meta")],
        [torch.zeros(4, 6), 2.0],
    ],
)
def test_arguments_of_another_layout_are_refused(args):
    with pytest.raises(ValueError, match="stored code"):
        Inductor().load(artifacts_of(made("two")), sum_of_two(), args)


def test_another_graph_or_number_of_threads_is_refused(monkeypatch):
    s = Sketch()
    x, y = s.input(tensor("float32", 4, 6)), s.input(tensor("float32", 4, 6))
    backend, artifacts = Inductor(), artifacts_of(made("two"))
    with pytest.raises(ValueError, match="number of outputs"):
        backend.load(artifacts, s.graph(x, y), two())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    with pytest.raises(ValueError, match="number of threads"):
        backend.load(artifacts, sum_of_two(), two())


def test_the_key_stays_with_what_was_compiled_and_changes_with_what_matters():
    backend = Inductor()
    before = backend.artifact_environment()
    assert before == backend.artifact_environment()
    assert not before.keys() & Inductor().environment().keys()
    assert torch.version.git_version in before["inductor torch"]
    with torch._inductor.config.patch({"cpp.cxx": ("no such compiler",)}):
        assert backend.artifact_environment()["inductor compiler"] == ""
    assert backend.artifact_environment() == before
