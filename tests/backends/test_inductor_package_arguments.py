"""What arguments of one layout may differ in from call to call, and that kept code is right for all of it."""

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from inductor_artifacts import artifacts_of, digest, made, sum_of_two, two

from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Graph

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


class Counting(Inductor):
    """Counts what it is asked to compile, which is then run op by op."""

    def __init__(self) -> None:
        super().__init__()
        self.compiles = 0

    def compile(self, graph: Graph, args: Sequence[Any]) -> Any:
        self.compiles += 1
        return Eager().compile(graph, args)


def loaded(backend: Inductor, args: Sequence[Any] | None = None) -> Callable[[Sequence[Any]], Any]:
    return backend.load(artifacts_of(made("two")), sum_of_two(), args or two())


def unaligned() -> list[torch.Tensor]:
    """In the middle of something else, so that no wide load is aligned."""
    return [torch.cat([torch.zeros(1), value.flatten()])[1:].view(4, 6) for value in two()]


def overlapping() -> list[torch.Tensor]:
    memory = torch.randn(30)
    return [memory[:24].view(4, 6), memory[6:].view(4, 6)]


def wanting_gradients() -> list[torch.Tensor]:
    return [value.requires_grad_() for value in two()]


def inference() -> list[torch.Tensor]:
    with torch.inference_mode():
        return [value.clone() for value in two()]


@pytest.mark.parametrize("make", [unaligned, overlapping, wanting_gradients, inference])
def test_kept_code_is_right_for_memory_wherever_it_lies(make):
    backend, args = Counting(), make()
    expected = torch.tanh(args[0] + args[1])
    for run in (loaded(backend), made("two").run):
        (result,) = run(args)
        assert not result.requires_grad
        assert torch.allclose(result, expected)
        assert digest([result]) == digest(run([value.detach().clone() for value in args]))
    assert backend.compiles == 0


def negative() -> list[torch.Tensor]:
    """In the layout of ``two``, and to be negated when they are read."""
    return [torch._neg_view(value) for value in two()]


class Own(torch.Tensor):
    """Of a type of its own."""


def of_own_type() -> list[torch.Tensor]:
    return [value.as_subclass(Own) for value in two()]


@pytest.mark.parametrize("make", [negative, of_own_type])
def test_what_kernels_cannot_read_is_compiled_for_once(make):
    backend, args = Counting(), make()
    run = loaded(backend)
    plain = digest(run(two()))
    assert backend.compiles == 0
    for _ in range(2):
        assert torch.equal(run(args)[0], torch.tanh(args[0] + args[1]))
        assert torch.equal(run([two()[0], args[1]])[0], torch.tanh(two()[0] + args[1]))
        assert digest(run(two())) == plain
    assert backend.compiles == 1
