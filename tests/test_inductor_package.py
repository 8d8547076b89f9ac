"""TorchInductor's code that another process loads: every bit the same, nothing compiled, nothing else accepted."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sketch import Sketch

from fusioncache.backends import inductor_package
from fusioncache.backends.inductor import Inductor
from fusioncache.backends.inductor_package import InductorKeeper
from fusioncache.backends.made import Made, NotKept
from fusioncache.ir import Const, Graph, NumberType, TensorType

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")

ROWS, COLUMNS = 13, 40


def tensor(dtype: str, *shape: int) -> TensorType:
    return TensorType(dtype, shape, "cpu")


def attention_like(dtype: str) -> Graph:
    """Softmax, a norm, gelu, comparisons, a mask, sums both ways, views; an input and a view among the outputs."""
    s = Sketch()
    full, row, column = (ROWS, COLUMNS), (COLUMNS,), (ROWS,)
    x, y, w, mask = s.input(tensor(dtype, *full)), *map(s.input, (tensor(dtype, *full), tensor(dtype, *row))), None
    mask = s.input(tensor("bool8", *full))
    wide = s.to(x, "float32") if dtype != "float32" else x
    down = (lambda value: s.to(value, dtype)) if dtype != "float32" else (lambda value: value)
    highest = s.op("amax", wide, (1,), type_=tensor("float32", *column))
    spread = s.op("broadcast_in_dim", highest, full, (0,), type_=tensor("float32", *full))
    powers = s.op("exp", s.op("sub", wide, spread))
    total = s.op("sum", powers, (1,), type_=tensor("float32", *column))
    softmax = s.op("div", powers, s.op("broadcast_in_dim", total, full, (0,), type_=tensor("float32", *full)))
    square = s.op("sum", s.op("mul", wide, wide), (1,), type_=tensor("float32", *column))
    scale = s.op("rsqrt", s.op("add", s.op("mul", square, 1 / COLUMNS), 1e-6))
    normed = down(s.op("mul", wide, s.op("broadcast_in_dim", scale, full, (0,), type_=tensor("float32", *full))))
    weight = s.op("broadcast_in_dim", w, full, (1,), type_=tensor(dtype, *full))
    gelu = s.op("mul", wide, s.op("add", s.op("erf", s.op("mul", wide, 0.7071067811865476)), 1.0))
    below = s.op("lt", x, y, type_=tensor("bool8", *full))
    both = s.op("bitwise_and", below, mask)
    picked = s.op("where", both, x, s.op("mul", y, weight), type_=tensor(dtype, *full))
    dropped = s.op("mul", s.to(mask, "float32"), wide)
    outputs = [down(softmax), s.op("mul", normed, weight), down(gelu), both, picked, down(dropped)]
    columns = s.op("sum", wide, (0,), type_=tensor("float32", *row))
    turned = s.op("transpose", x, (1, 0), type_=tensor(dtype, COLUMNS, ROWS))
    return s.graph(*outputs, columns, total, turned, y)


def small() -> Graph:
    """Integers, a tensor without dimensions, constants."""
    s = Sketch()
    i, x, zero = s.input(tensor("int64", 5, 3)), s.input(tensor("float32", 5, 3)), s.input(tensor("float32"))
    spread = s.op("broadcast_in_dim", zero, (5, 3), (), type_=tensor("float32", 5, 3))
    dtype = Const("dtype", "float32")
    ones = s.op("full", (5, 3), float("inf"), device=Const("device", "cpu"), dtype=dtype, type_=tensor("float32", 5, 3))
    whole = s.op("sum", s.op("mul", x, spread), (0, 1), type_=tensor("float32"))
    outputs = [s.op("add", i, 7), s.op("remainder", i, 3), s.op("add", s.to(i, "float32"), x)]
    return s.graph(*outputs, whole, s.op("tanh", zero), s.op("maximum", x, s.op("neg", ones)))


def sum_of_two() -> Graph:
    s = Sketch()
    x, y = s.input(tensor("float32", 4, 6)), s.input(tensor("float32", 4, 6))
    return s.graph(s.op("tanh", s.op("add", x, y)))


def only_views() -> Graph:
    s = Sketch()
    x = s.input(tensor("float32", 4, 6))
    return s.graph(s.op("transpose", x, (1, 0), type_=tensor("float32", 6, 4)), x)


def dense(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, y, w = (torch.randn(shape).to(dtype) for shape in ((ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,)))
    return [x, y, w, torch.rand(ROWS, COLUMNS) > 0.1]


def strided(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(COLUMNS, ROWS).to(dtype).t(), torch.randn(ROWS, 2 * COLUMNS).to(dtype)[:, 1::2]
    return [x, y, torch.randn(1).to(dtype).expand(COLUMNS), torch.rand(ROWS, 1).expand(ROWS, COLUMNS) > 0.1]


def some() -> list[torch.Tensor]:
    torch.manual_seed(2)
    return [torch.randint(-9, 9, (5, 3)), torch.randn(5, 3), torch.randn(())]


def two() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(4, 6), torch.randn(4, 6)]


CASES: dict[str, Callable[[], tuple[Graph, list[torch.Tensor]]]] = {
    "float32": lambda: (attention_like("float32"), dense(torch.float32)),
    "bfloat16": lambda: (attention_like("bfloat16"), strided(torch.bfloat16)),
    "small": lambda: (small(), some()),
    "two": lambda: (sum_of_two(), two()),
    "views": lambda: (only_views(), two()[:1]),
}


def digest(outputs: Sequence[torch.Tensor]) -> str:
    """Of dtypes, sizes, strides and every bit."""
    found = hashlib.sha256()
    for output in outputs:
        found.update(f"{output.dtype} {tuple(output.shape)} {output.stride()}".encode())
        found.update(output.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def made() -> Callable[[str], Made]:
    """Each case, compiled once."""
    done: dict[str, Made] = {}

    def make(name: str) -> Made:
        if name not in done:
            done[name] = InductorKeeper(Inductor()).compile(*CASES[name]())
        assert done[name].artifacts is not None, done[name].reason
        return done[name]

    return make


def artifacts_of(made: Made) -> dict[str, bytes]:
    assert made.artifacts is not None
    return dict(made.artifacts)


@pytest.mark.parametrize("name", CASES)
def test_every_bit_dtype_stride_and_alias_is_that_of_inductor(name, made, tmp_path):
    graph, args = CASES[name]()
    expected = Inductor().compile(graph, args)(args)
    keeper = InductorKeeper(Inductor(), scratch=tmp_path)
    for run in (made(name).run, keeper.load(artifacts_of(made(name)), graph, args)):
        found = run(tuple(args))
        assert isinstance(found, list)
        assert digest(found) == digest(expected)
        assert memory(found, args) == memory(expected, args)
    assert not list(tmp_path.iterdir())


def memory(outputs: Sequence[torch.Tensor], args: Sequence[torch.Tensor]) -> list[list[int]]:
    """For each output the arguments that share its memory."""
    starts = [arg.untyped_storage().data_ptr() for arg in args]
    return [[at for at, start in enumerate(starts) if start == out.untyped_storage().data_ptr()] for out in outputs]


def test_outputs_that_are_inputs_or_views_can_be_written_to(made):
    _, (x,) = CASES["views"]()
    turned, same = made("views").run([x])
    assert same is x
    turned[2, 1] = 5.0
    assert x[1, 2] == 5.0


def test_code_made_for_one_tensor_twice_is_right_for_two(made):
    graph, (x, y) = CASES["two"]()
    twice = InductorKeeper(Inductor()).compile(graph, [x, x])  # the library is there already
    assert twice.artifacts is not None
    assert digest(twice.run([x, y])) == digest(made("two").run([x, y]))
    assert artifacts_of(twice) == artifacts_of(made("two"))


def test_neither_autograd_nor_autocast_nor_inference_mode_changes_a_call(made):
    _, args = CASES["two"]()
    expected = digest(made("two").run(args))
    parameters = [torch.nn.Parameter(arg) for arg in args]
    with torch.autocast("cpu", torch.bfloat16):
        (result,) = made("two").run(parameters)
    assert not result.requires_grad
    assert digest([result]) == expected
    with torch.inference_mode():
        assert digest(made("two").run(args)) == expected


LOADER = """
import pickle, subprocess, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import torch
from fusioncache.backends.inductor import Inductor
from fusioncache.backends.inductor_package import InductorKeeper
from test_inductor_package import CASES, digest

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
    print(digest(InductorKeeper(Inductor()).load(artifacts, graph, args)(args)))
"""


def test_a_new_process_loads_without_compilers_and_without_unpickling(made, tmp_path):
    names = list(CASES)
    for name in names:
        (tmp_path / name).mkdir()
        for artifact, content in artifacts_of(made(name)).items():
            (tmp_path / name / artifact).write_bytes(content)
    program = LOADER.format(tests=str(Path(__file__).parent), folder=str(tmp_path), names=names)
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == [digest(made(name).run(CASES[name]()[1])) for name in names]


def test_threads_load_and_call_at_the_same_time(made):
    graph, args = CASES["float32"]()
    keeper, artifacts = InductorKeeper(Inductor()), artifacts_of(made("float32"))
    shared = keeper.load(artifacts, graph, args)
    others = [[args[0] + number, *args[1:]] for number in range(4)]
    expected = [digest(made("float32").run(other)) for other in others]
    wrong: list[int] = []

    def work(number: int) -> None:
        own = keeper.load(artifacts, graph, args)
        for _ in range(100):
            if digest(shared(others[number])) != expected[number] or digest(own(others[number])) != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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


def no_inputs() -> tuple[Graph, list[Any]]:
    s = Sketch()
    full = s.op("full", (2,), 1.0, device=Const("device", "cpu"), dtype=Const("dtype", "float32"))
    return s.graph(full), []


def subclass() -> tuple[Graph, list[Any]]:
    class Own(torch.Tensor):
        pass

    return sum_of_two(), [two()[0], two()[1].as_subclass(Own)]


def on_meta() -> tuple[Graph, list[Any]]:
    return sum_of_two(), [value.to("meta") for value in two()]


def negated() -> tuple[Graph, list[Any]]:
    return sum_of_two(), [two()[0], torch.randn(4, 6, dtype=torch.complex64).conj().imag]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (in_place, "in-place effects"),
        (numbers, "a number among the inputs"),
        (no_inputs, "no inputs"),
        (subclass, "an argument of type Own"),
        (on_meta, "a tensor on a device of type meta"),
        (negated, "a tensor that is not stored plainly"),
    ],
)
def test_what_cannot_be_kept_is_compiled_as_ever_and_says_why(case, reason):
    assert InductorKeeper(Stub()).compile(*case()) == Made("compiled by Inductor", None, reason)


def test_what_fails_only_where_it_is_to_be_kept_is_compiled_as_ever(monkeypatch):
    def fail(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(inductor_package, "_compiled", fail)
    made = InductorKeeper(Stub()).compile(*CASES["two"]())
    assert made == Made("compiled by Inductor", None, "AssertionError where its code is to be kept")


def test_a_wrapper_that_calls_other_things_is_not_kept():
    """As TorchInductor writes it for an operation that it leaves to torch."""
    source = (
        "def call(args):\n    a, = args\n    args.clear()\n    b = torch.ops.aten.sort.default(a)\n    return (b, )\n"
    )
    wrapper, outputs = inductor_package._wrapper(source)
    assert outputs == 1
    with pytest.raises(NotKept, match="a wrapper that calls default"):
        inductor_package._checked(wrapper, {})


def test_a_library_is_private_and_gone_once_it_is_loaded(made, tmp_path, monkeypatch):
    seen = []
    load = inductor_package._load_library

    def watching(library: bytes, folder: Path) -> Any:
        seen.append((folder.parent, folder.stat().st_mode & 0o777))
        return load(library, folder)

    monkeypatch.setattr(inductor_package, "_load_library", watching)
    before = {name for name in sys.modules if "kernel" in name}
    keeper = InductorKeeper(Inductor(), scratch=tmp_path)
    keeper.load(artifacts_of(made("two")), *CASES["two"]())
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
def test_arguments_of_another_layout_are_refused(args, made):
    with pytest.raises(ValueError, match="kept code"):
        InductorKeeper(Inductor()).load(artifacts_of(made("two")), sum_of_two(), args)


def test_another_graph_or_number_of_threads_is_refused(made, monkeypatch):
    s = Sketch()
    x, y = s.input(tensor("float32", 4, 6)), s.input(tensor("float32", 4, 6))
    keeper, artifacts = InductorKeeper(Inductor()), artifacts_of(made("two"))
    with pytest.raises(ValueError, match="number of outputs"):
        keeper.load(artifacts, s.graph(x, y), two())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    with pytest.raises(ValueError, match="number of threads"):
        keeper.load(artifacts, sum_of_two(), two())


HOSTILE_SIGNATURES = {
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe\xff",
    "a list": b"[]",
    "a number": b"1e999",
    "nothing": b"null",
    "deep": b"[" * 200_000,
    "long": b"1" * 100_000,
    "empty": b"{}",
}


@pytest.mark.parametrize("name", HOSTILE_SIGNATURES)
def test_a_hostile_signature_is_refused(name, made):
    artifacts = {**artifacts_of(made("two")), "signature.json": HOSTILE_SIGNATURES[name]}
    with pytest.raises(ValueError):
        InductorKeeper(Inductor()).load(artifacts, *CASES["two"]())


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"format": None},
        {"surplus": 1},
        {"inputs": 3},
        {"inputs": []},
        {"outputs": "1"},
        {"threads": None},
        {"kernels": 5},
        {"kernels": [["torch", "0"]]},
        {"kernels": [["call", "0"]]},
        {"kernels": [["a.b", "0"]]},
        {"kernels": [[[], "0"]]},
        {"kernels": {"ab": 1}},
        {"kernels": [["k", "0"], ["k", "0"]]},
        {"wrapper": {}},
    ],
    ids=str,
)
def test_a_signature_with_hostile_fields_is_refused(fields, made):
    with pytest.raises(ValueError):
        InductorKeeper(Inductor()).load(changed(artifacts_of(made("two")), fields), *CASES["two"]())


def changed(artifacts: Mapping[str, bytes], fields: Mapping[str, Any]) -> dict[str, bytes]:
    signature = {**json.loads(artifacts["signature.json"]), **fields}
    return {**artifacts, "signature.json": json.dumps(signature).encode()}


@pytest.mark.parametrize("name", ["signature.json", "wrapper.py", "kernel-0.so"])
def test_missing_cut_and_altered_artifacts_are_refused(name, made):
    artifacts = artifacts_of(made("two"))
    content = artifacts.pop(name)
    middle = len(content) // 2
    altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for other in ({}, {name: content[:middle]}, {name: b""}, *([{name: altered}] if name != "signature.json" else [])):
        with pytest.raises(ValueError):
            InductorKeeper(Inductor()).load({**artifacts, **other}, *CASES["two"]())


def test_a_library_that_is_none_is_refused_and_leaves_nothing(made, tmp_path):
    for library in (b"", b"no library", artifacts_of(made("two"))["kernel-0.so"][:100]):
        kernels = [["k", hashlib.sha256(library).hexdigest()]]
        wrapper = b"def call(args):\n    a, b = args\n    k(a)\n    return [a]\n"
        fields = {"kernels": kernels, "wrapper": hashlib.sha256(wrapper).hexdigest()}
        artifacts = {**artifacts_of(made("two")), "kernel-0.so": library, "wrapper.py": wrapper}
        with pytest.raises(ValueError, match="does not load"):
            InductorKeeper(Inductor(), scratch=tmp_path).load(changed(artifacts, fields), *CASES["two"]())
    assert not list(tmp_path.iterdir())


START = "def call(args):\n    a, b = args\n    "


@pytest.mark.parametrize(
    "wrapper",
    [
        "import os\n",
        "print(1)\n",
        START + "import os\n",
        START + "return a.__class__\n",
        START + "return __import__('os')\n",
        START + "return torch.load('x')\n",
        START + "return torch.float32.__class__\n",
        START + "return torch.ops\n",
        START + "while True: pass\n",
        START + "return [x for x in a]\n",
        START + "return (lambda: a)()\n",
        START + "return empty_strided_cpu((1,), (1,), 'x')\n",
        START + "return empty_strided_cpu(size=(1,))\n",
        START + "return empty_strided_cpu\n",
        START + "return c\n",
        START + "torch = a\n",
        START + "reinterpret_tensor = a\n",
        START + "del torch\n",
        START + "a[0] = b\n",
        START + "return f'{a}'\n",
        START + "return " + "-" * 100_000 + "1\n",
        START + "return " + "(" * 10_000 + ")" * 10_000 + "\n",
        START + "return a" + ".b" * 50_000 + "\n",
        START + "return [a]\ndef more(): pass\n",
        "@print\n" + START + "return [a]\n",
        "def call(args, more=print()):\n    return [args]\n",
        "def call(args: print()):\n    return [args]\n",
        "def call(args) -> print():\n    return [args]\n",
        "async def call(args):\n    return [args]\n",
        "\0",
        "",
        "#" * 5_000_000,
    ],
    ids=lambda wrapper: wrapper.removeprefix(START)[:40],
)
def test_a_wrapper_in_another_language_is_refused_before_it_runs(wrapper, made):
    fields = {"wrapper": hashlib.sha256(wrapper.encode()).hexdigest()}
    artifacts = changed({**artifacts_of(made("two")), "wrapper.py": wrapper.encode()}, fields)
    with pytest.raises(ValueError, match=r"a (long )?wrapper"):
        InductorKeeper(Inductor()).load(artifacts, *CASES["two"]())


def test_the_key_stays_with_what_was_compiled_and_changes_with_what_matters(monkeypatch):
    keeper = InductorKeeper(Inductor())
    before = keeper.environment()
    assert before == keeper.environment() == InductorKeeper(Inductor(), scratch=Path("elsewhere")).environment()
    assert not before.keys() & Inductor().environment().keys()
    assert torch.version.git_version in before["inductor torch"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert differing(before, keeper.environment()) == {"inductor settings"}
    monkeypatch.undo()
    with torch._inductor.config.patch(size_asserts=False):
        assert differing(before, keeper.environment()) == {"inductor settings"}
    with torch._inductor.config.patch({"cpp.cxx": ("no such compiler",)}):
        assert keeper.environment()["inductor compiler"] == ""
    assert keeper.environment() == before


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
