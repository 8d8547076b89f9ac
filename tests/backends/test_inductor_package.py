"""TorchInductor's code that another process loads: every bit the same, nothing compiled."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from inductor_artifacts import CASES, SUM_OF_TWO, artifacts_of, digest, made, two
from repository import HELPERS, ROOT
from threads_at_once import run_at_once

from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Graph

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


@pytest.mark.parametrize("name", CASES)
def test_every_bit_dtype_stride_and_alias_is_that_of_inductor(name):
    graph, args = CASES[name]()
    expected = Inductor().compile(graph, args)(args)
    backend = Inductor()
    for run in (made(name).run, backend.load(artifacts_of(made(name)), graph, args)):
        found = run(tuple(args))
        assert isinstance(found, list)
        assert digest(found) == digest(expected)
        assert memory(found, args) == memory(expected, args)


def memory(outputs: Sequence[torch.Tensor], args: Sequence[torch.Tensor]) -> list[list[int]]:
    """For each output the arguments that share its memory."""
    starts = [arg.untyped_storage().data_ptr() for arg in args]
    return [[at for at, start in enumerate(starts) if start == out.untyped_storage().data_ptr()] for out in outputs]


def test_code_made_for_one_tensor_twice_is_right_for_two():
    graph, (x, y) = CASES["two"]()
    twice = Inductor().persist(graph, [x, x])  # the library is there already
    assert twice.artifacts is not None
    assert digest(twice.run([x, y])) == digest(made("two").run([x, y]))
    assert artifacts_of(twice) == artifacts_of(made("two"))


@pytest.mark.parametrize("name", ["two", "products"])
def test_neither_autograd_nor_autocast_nor_inference_mode_changes_a_call(name):
    _, args = CASES[name]()
    expected = digest(made(name).run(args))
    with torch.autocast("cpu", torch.bfloat16):
        results = made(name).run([torch.nn.Parameter(arg) for arg in args])
        assert torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    assert not any(result.requires_grad for result in results)
    assert digest(results) == expected
    with torch.inference_mode():
        assert digest(made(name).run(args)) == expected


def test_products_are_left_to_torch():
    wrapper = artifacts_of(made("products"))["wrapper.py"].decode()
    assert {"mm", "addmm", "bmm"} <= {*re.findall(r"extern_kernels\.(\w+)", wrapper)}


LOADER = """
import pickle, subprocess, sys
sys.path.insert(0, {tests!r})
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
        for artifact, content in artifacts_of(made(name)).items():
            (tmp_path / name / artifact).write_bytes(content)
    # Code is for a number of threads, and an earlier test may have left this process with another one.
    threads = torch.get_num_threads()
    program = LOADER.format(tests=str(HELPERS), folder=str(tmp_path), names=names, threads=threads)
    command = [sys.executable, "-W", "ignore", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == [digest(made(name).run(CASES[name]()[1])) for name in names]


def test_threads_load_and_call_at_the_same_time():
    graph, args = CASES["float32"]()
    backend, artifacts = Inductor(), artifacts_of(made("float32"))
    shared = backend.load(artifacts, graph, args)
    others = [[args[0] + number, *args[1:]] for number in range(4)]
    expected = [digest(made("float32").run(other)) for other in others]
    wrong: list[int] = []

    def work(number: int) -> None:
        own = backend.load(artifacts, graph, args)
        for _ in range(100):
            if digest(shared(others[number])) != expected[number] or digest(own(others[number])) != expected[number]:
                wrong.append(number)

    run_at_once(*(partial(work, number) for number in range(4)))
    assert not wrong


class Counting(Inductor):
    """Counts what it is asked to compile, which is then run op by op."""

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
    for run in (backend.load(artifacts_of(made("two")), SUM_OF_TWO, two()), made("two").run):
        (result,) = run(args)
        assert not result.requires_grad
        assert torch.allclose(result, expected)
        assert digest([result]) == digest(run([value.detach().clone() for value in args]))
    assert backend.compiles == 0


class Own(torch.Tensor):
    """Of a type of its own."""


@pytest.mark.parametrize(
    "change", [torch._neg_view, lambda value: value.as_subclass(Own)], ids=["negative", "own type"]
)
def test_what_kernels_cannot_read_is_compiled_for_once(change):
    backend, args = Counting(), [change(value) for value in two()]
    run = backend.load(artifacts_of(made("two")), SUM_OF_TWO, two())
    plain = digest(run(two()))
    assert backend.compiles == 0
    for _ in range(2):
        assert torch.equal(run(args)[0], torch.tanh(args[0] + args[1]))
        assert torch.equal(run([two()[0], args[1]])[0], torch.tanh(two()[0] + args[1]))
        assert digest(run(two())) == plain
    assert backend.compiles == 1
