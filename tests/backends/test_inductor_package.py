"""TorchInductor's code that another process loads: equal bits, which code is not stored, and which is not loaded."""

import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drawn_regions import draw
from inductor_artifacts import CASES, SUM_OF_TWO, artifacts_of, compile_case, digest, two
from own_tensors import Own
from repository import run_code
from threads_at_once import run_at_once
from torch._subclasses import FakeTensorMode

from fusioncache.backends.api import Compiled
from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor import artifacts
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Declined, Graph, NumberType

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


@pytest.mark.parametrize("name", CASES)
def test_every_bit_dtype_stride_and_alias_is_that_of_inductor(name):
    graph, args = CASES[name]()
    expected = Inductor().compile(graph, args)(args)
    backend = Inductor()
    for run in (compile_case(name).run, backend.load(artifacts_of(compile_case(name)), graph, args)):
        found = run(tuple(args))
        assert isinstance(found, list)
        assert digest(found) == digest(expected)
        assert memory(found, args) == memory(expected, args)


def memory(outputs: Sequence[torch.Tensor], args: Sequence[torch.Tensor]) -> list[list[int]]:
    """Returns for each output the positions of the arguments that share its memory."""
    starts = [arg.untyped_storage().data_ptr() for arg in args]
    return [[at for at, start in enumerate(starts) if start == out.untyped_storage().data_ptr()] for out in outputs]


def test_code_made_for_one_tensor_twice_is_right_for_two():
    graph, (x, y) = CASES["two"]()
    twice = Inductor().persist(graph, [x, x])  # the library is there already
    assert twice.artifacts is not None
    assert digest(twice.run([x, y])) == digest(compile_case("two").run([x, y]))
    assert artifacts_of(twice) == artifacts_of(compile_case("two"))


@pytest.mark.parametrize("name", ["two", "products"])
def test_neither_autograd_nor_autocast_nor_inference_mode_changes_a_call(name):
    _, args = CASES[name]()
    expected = digest(compile_case(name).run(args))
    with torch.autocast("cpu", torch.bfloat16):
        results = compile_case(name).run([torch.nn.Parameter(arg) for arg in args])
        assert torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    assert not any(result.requires_grad for result in results)
    assert digest(results) == expected
    with torch.inference_mode():
        assert digest(compile_case(name).run(args)) == expected


def test_products_are_left_to_torch():
    wrapper = artifacts_of(compile_case("products"))["wrapper.py"].decode()
    assert {"mm", "addmm", "bmm"} <= {*re.findall(r"extern_kernels\.(\w+)", wrapper)}


LOADER = """
import pickle, subprocess, sys
from pathlib import Path
import torch
torch.set_num_threads({threads})
from fusioncache.backends.inductor.backend import Inductor
from inductor_artifacts import CASES, digest

def refuse(*args, **kwargs):
    raise AssertionError("nothing may be compiled or unpickled")

for name in ("torch._inductor", "torch._dynamo", "torch._functorch", "torch.fx", "thunder"):
    for module in [module for module in sys.modules if module == name or module.startswith(name + ".")]:
        del sys.modules[module]
    sys.modules[name] = None
subprocess.Popen = subprocess.run = pickle.load = pickle.loads = pickle.Unpickler = refuse
Inductor.compile = refuse
folder = Path({folder!r})
for name in {names!r}:
    graph, args = CASES[name]()
    artifacts = {{file.name: file.read_bytes() for file in (folder / name).iterdir()}}
    print(digest(Inductor().load(artifacts, graph, args)(args)))
"""


def test_a_new_process_loads_without_compilers_and_without_unpickling(tmp_path):
    names = list(CASES)
    for name in names:
        (tmp_path / name).mkdir()
        for artifact, content in artifacts_of(compile_case(name)).items():
            (tmp_path / name / artifact).write_bytes(content)
    # Code depends on the number of threads, which an earlier test may have changed in this process.
    threads = torch.get_num_threads()
    said = run_code(LOADER.format(folder=str(tmp_path), names=names, threads=threads))
    assert said.split() == [digest(compile_case(name).run(CASES[name]()[1])) for name in names]


def test_threads_load_and_call_at_the_same_time():
    graph, args = CASES["float32"]()
    backend, artifacts = Inductor(), artifacts_of(compile_case("float32"))
    shared = backend.load(artifacts, graph, args)
    others = [[args[0] + number, *args[1:]] for number in range(4)]
    expected = [digest(compile_case("float32").run(other)) for other in others]
    wrong: list[int] = []

    def work(number: int) -> None:
        own = backend.load(artifacts, graph, args)
        for _ in range(100):
            if digest(shared(others[number])) != expected[number] or digest(own(others[number])) != expected[number]:
                wrong.append(number)

    run_at_once(*(partial(work, number) for number in range(4)))
    assert not wrong


class Counting(Inductor):
    """A backend that counts its compiles, and runs the regions op by op."""

    compiles = 0

    def compile(self, graph: Graph, args: Sequence[Any]) -> Any:
        self.compiles += 1
        return Eager().compile(graph, args)


MEMORY = torch.arange(30.0)
IN_OTHER_MEMORY = {
    "unaligned": lambda: [torch.cat([torch.zeros(1), value.flatten()])[1:].view(4, 6) for value in two()],
    "overlapping": lambda: [MEMORY[:24].view(4, 6), MEMORY[6:].view(4, 6)],
    "one tensor": lambda: [two()[0]] * 2,
    "wanting gradients": lambda: [torch.nn.Parameter(value) for value in two()],
    "made for inference": torch.inference_mode()(lambda: [value.clone() for value in two()]),
}


@pytest.mark.parametrize("make", IN_OTHER_MEMORY.values(), ids=IN_OTHER_MEMORY)
def test_kept_code_is_right_for_memory_wherever_it_lies(make):
    backend, args = Counting(), make()
    expected = torch.tanh(args[0] + args[1])
    for run in (backend.load(artifacts_of(compile_case("two")), SUM_OF_TWO, two()), compile_case("two").run):
        (result,) = run(args)
        assert not result.requires_grad
        assert torch.allclose(result, expected)
        assert digest([result]) == digest(run([value.detach().clone() for value in args]))
    assert backend.compiles == 0


@pytest.mark.parametrize(
    "change", [torch._neg_view, lambda value: value.as_subclass(Own)], ids=["negative", "own type"]
)
def test_what_kernels_cannot_read_is_compiled_for_once(change):
    backend, args = Counting(), [change(value) for value in two()]
    run = backend.load(artifacts_of(compile_case("two")), SUM_OF_TWO, two())
    plain = digest(run(two()))
    assert backend.compiles == 0
    for _ in range(2):
        assert torch.equal(run(args)[0], torch.tanh(args[0] + args[1]))
        assert torch.equal(run([two()[0], args[1]])[0], torch.tanh(two()[0] + args[1]))
        assert digest(run(two())) == plain
    assert backend.compiles == 1


NEGATED = torch.randn(4, 6, dtype=torch.complex64).conj().imag


@pytest.fixture
def compiles_nothing(monkeypatch):
    monkeypatch.setattr(Inductor, "compile", lambda self, graph, args: "compiled")


@pytest.mark.parametrize(
    ("graph", "args", "reason", "lasting"),
    [
        (draw("copy_(add(x, y), x, grad_enabled=False)", x=(4, 6), y=(4, 6)), two(), "in-place effects", True),
        (draw("mul(x, n)", n=NumberType("float")), [two()[0], 2.0], "a number among the inputs", True),
        (draw("full((2,), 1.0, device='cuda:0')", device="cuda"), [], "a tensor that is not on the CPU", True),
        (SUM_OF_TWO, [two()[0], two()[1].as_subclass(Own)], "an argument of type Own", False),
        (SUM_OF_TWO, [value.to("meta") for value in two()], "a tensor that is not on the CPU", True),
        (SUM_OF_TWO, [two()[0], NEGATED], "a tensor that is sparse, quantized or otherwise special", False),
    ],
)
@pytest.mark.usefixtures("compiles_nothing")
def test_what_cannot_be_kept_is_compiled_as_ever_and_says_why(graph, args, reason, lasting):
    assert Inductor().persist(graph, args) == Compiled("compiled", None, reason, lasting)


@pytest.mark.usefixtures("compiles_nothing")
def test_what_a_mode_may_have_changed_or_what_fails_to_be_kept_is_not_kept(monkeypatch):
    args = two()
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = Inductor().persist(SUM_OF_TWO, args)
    assert found == Compiled("compiled", None, "the mode FakeTensorMode", is_permanent=False)
    monkeypatch.setattr(artifacts, "compile_graph", lambda *args: 1 / 0)
    found = Inductor().persist(SUM_OF_TWO, args)
    assert found == Compiled("compiled", None, "ZeroDivisionError where its code is to be stored", is_permanent=False)


def test_a_product_that_was_replaced_is_not_kept():
    own = {name: getattr(torch, name) for name in artifacts.OPERATIONS}
    artifacts.check_operations(SimpleNamespace(**own))
    artifacts.check_operations(None)  # a wrapper without any
    for name in own:
        with pytest.raises(Declined, match="an operation that was replaced"):
            artifacts.check_operations(SimpleNamespace(**{**own, name: torch.add}))


def test_a_library_is_private_and_gone_once_it_is_loaded(tmp_path, monkeypatch):
    stored, seen = artifacts_of(compile_case("two")), []  # which imports TorchInductor
    load = artifacts.load_library

    def watching(library: bytes, folder: Path) -> Any:
        seen.append((folder.parent, folder.stat().st_mode & 0o777))
        return load(library, folder)

    monkeypatch.setattr(artifacts, "load_library", watching)
    before = {name for name in sys.modules if "kernel" in name}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    artifacts.load_module.cache_clear()
    Inductor().load(stored, *CASES["two"]())
    assert seen == [(tmp_path, 0o700)]
    assert not list(tmp_path.iterdir())
    assert {name for name in sys.modules if "kernel" in name} == before


ROWS = torch.zeros(4, 6)
UNFIT = [torch.zeros(6, 4).t()], [torch.zeros(4, 7)], [ROWS.double()], [ROWS.to("meta")], [2.0], []


def test_arguments_of_another_layout_another_graph_and_another_number_of_threads_are_refused(monkeypatch):
    stored, load = artifacts_of(compile_case("two")), Inductor().load
    for args in UNFIT:
        with pytest.raises(ValueError, match="stored code"):
            load(stored, SUM_OF_TWO, [ROWS, *args])
    with pytest.raises(ValueError, match="number of outputs"):
        load(stored, draw("x", "y", x=(4, 6), y=(4, 6)), two())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    with pytest.raises(ValueError, match="number of threads"):
        load(stored, SUM_OF_TWO, two())


def test_the_key_stays_with_what_was_compiled_and_changes_with_what_matters():
    backend = Inductor()
    before = backend.artifact_environment()
    assert before == backend.artifact_environment()
    assert not before.keys() & Inductor().environment().keys()
    assert torch.version.git_version in before["inductor torch"]
    with torch._inductor.config.patch({"cpp.cxx": ("no such compiler",)}):
        assert backend.artifact_environment()["inductor compiler"] == ""
    assert backend.artifact_environment() == before


def test_the_source_of_the_very_kernel_is_kept_for_people():
    stored = artifacts_of(compile_case("two"))
    ((kernel, *_),) = json.loads(stored["signature.json"])["kernels"]
    text = stored["kernels.cpp"].decode()
    assert text.startswith(f"// {kernel}\n") and 'extern "C"' in text and "tanh(" in text


def changed(artifacts: Mapping[str, bytes], fields: Mapping[str, Any]) -> dict[str, bytes]:
    signature = {**json.loads(artifacts["signature.json"]), **fields}
    return {**artifacts, "signature.json": json.dumps(signature).encode()}


@pytest.mark.parametrize(
    "signature",
    [
        *(b"{", b"\xff\xfe\xff", b"[]", b"1e999", b"null", b"[" * 200_000, b"1" * 100_000, b"{}"),
        *({"format": value} for value in (4, 6, None)),
        *({"surplus": 1}, {"inputs": 3}, {"inputs": []}, {"outputs": "1"}, {"threads": None}, {"wrapper": {}}),
        *({"kernels": [[name, 0, "kernel"]]} for name in ("torch", "call", "a.b", [])),
        *({"kernels": [["k", *place]]} for place in ([1, "kernel"], [-1, "kernel"], [0, "__dict__"], [0, "a.b"], [0])),
        *({"kernels": 5}, {"kernels": {"ab": 1}}, {"kernels": [["k", 0, "kernel"], ["k", 0, "kernel"]]}),
        *({"libraries": 5}, {"libraries": []}, {"libraries": ["0"]}),
    ],
    ids=lambda signature: str(signature)[:50],
)
def test_a_hostile_signature_is_refused(signature):
    stored = artifacts_of(compile_case("two"))
    hostile = signature if isinstance(signature, bytes) else changed(stored, signature)["signature.json"]
    with pytest.raises(ValueError):
        Inductor().load({**stored, "signature.json": hostile}, *CASES["two"]())


@pytest.mark.parametrize("name", ["signature.json", "wrapper.py", "kernel-0.so"])
def test_missing_cut_and_altered_artifacts_are_refused(name):
    artifacts = artifacts_of(compile_case("two"))
    content = artifacts.pop(name)
    middle = len(content) // 2
    altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for other in ({}, {name: content[:middle]}, {name: b""}, *([{name: altered}] if name != "signature.json" else [])):
        with pytest.raises(ValueError):
            Inductor().load({**artifacts, **other}, *CASES["two"]())


def test_a_library_that_is_none_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for library in (b"", b"no library", artifacts_of(compile_case("two"))["kernel-0.so"][:100]):
        kernels, digests = [["k", 0, "kernel"]], [hashlib.sha256(library).hexdigest()]
        wrapper = b"def call(args):\n    a, b = args\n    k(a)\n    return [a]\n"
        fields = {"kernels": kernels, "libraries": digests, "wrapper": hashlib.sha256(wrapper).hexdigest()}
        stored = {**artifacts_of(compile_case("two")), "kernel-0.so": library, "wrapper.py": wrapper}
        with pytest.raises(ValueError, match="does not load"):
            Inductor().load(changed(stored, fields), *CASES["two"]())
    assert not list(tmp_path.iterdir())


START = "def call(args):\n    a, b = args\n    "
RETURNED = (
    *("torch.ops.aten.sort.default(a)", "torch.load('x')", "torch.float32.__class__", "torch.ops", "a.mm(a, b)"),
    *("extern_kernels.convolution(a, b)", "extern_kernels.mm(a, b, out=a, other=1)", "extern_kernels.mm(a, **b)"),
    *("extern_kernels.mm.__self__(a)", "extern_kernels.__class__(a)", "a.__class__", "__import__('os')", "c", "f'{a}'"),
    *("empty_strided_cpu((1,), (1,), 'x')", "empty_strided_cpu(size=(1,))", "empty_strided_cpu"),
    *("[x for x in a]", "(lambda: a)()", "-" * 100_000 + "1", "(" * 10_000 + ")" * 10_000, "a" + ".b" * 50_000),
)
STATEMENTS = "import os", "while True: pass", "torch = a", "reinterpret_tensor = a", "del torch", "a[0] = b"


@pytest.mark.parametrize(
    "wrapper",
    [
        *(f"{START}return {returned}\n" for returned in RETURNED),
        *(f"{START}{statement}\n" for statement in STATEMENTS),
        *("import os\n", "print(1)\n", "\0", "", "#" * 5_000_000),
        *(f"{START}return [a]\ndef more(): pass\n", f"@print\n{START}return [a]\n"),
        *(f"def call(args{more}:\n    return [args]\n" for more in (", more=print())", ": print())", ") -> print()")),
        "async def call(args):\n    return [args]\n",
    ],
    ids=lambda wrapper: wrapper.removeprefix(START)[:40],
)
def test_a_wrapper_in_another_language_is_refused_before_it_runs(wrapper):
    fields = {"wrapper": hashlib.sha256(wrapper.encode()).hexdigest()}
    artifacts = changed({**artifacts_of(compile_case("two")), "wrapper.py": wrapper.encode()}, fields)
    with pytest.raises(Declined, match=r"a (long )?wrapper"):
        Inductor().load(artifacts, *CASES["two"]())
