"""TorchInductor's code that another process loads: every bit the same, nothing compiled."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from inductor_artifacts import CASES, artifacts_of, digest, made
from repository import HELPERS, ROOT
from threads_at_once import run_at_once

from fusioncache.backends.inductor.backend import Inductor

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


def test_neither_autograd_nor_autocast_nor_inference_mode_changes_a_call():
    _, args = CASES["two"]()
    expected = digest(made("two").run(args))
    parameters = [torch.nn.Parameter(arg) for arg in args]
    with torch.autocast("cpu", torch.bfloat16):
        (result,) = made("two").run(parameters)
    assert not result.requires_grad
    assert digest([result]) == expected
    with torch.inference_mode():
        assert digest(made("two").run(args)) == expected


def test_products_are_taken_outside_autograd_and_autocast_and_leave_both_as_they_were():
    _, args = CASES["products"]()
    assert {"mm", "addmm", "bmm"} <= set(
        re.findall(r"extern_kernels\.(\w+)", artifacts_of(made("products"))["wrapper.py"].decode())
    )
    with torch.autocast("cpu", torch.bfloat16):
        results = made("products").run([torch.nn.Parameter(arg) for arg in args])
        assert torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
    assert not any(result.requires_grad for result in results)
    assert digest(results) == digest(made("products").run(args))


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
