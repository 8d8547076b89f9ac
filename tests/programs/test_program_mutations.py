"""A program is stored, one thing changes, and the next process does not load it but reports the change.

Each change is tested end to end: another transform compiles the model over the store that has its program, with
Thunder's interpreter disabled: to derive it again raises. The unchanged model's program is loaded, before and
after. The most frequent changes are in ``tests/spec/test_spec_noticing_changes.py``.
"""

import builtins
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import mutated_model as own
import pytest
import thunder
import thunder.torch
import torch
from mutated_model import Base, Mutable, Norm
from own_tensors import Own
from program_keys import Keyed, attribute, changed
from stored_programs import compile_anew, counts, store_program, without_interpreter
from thunder.extend import OperatorExecutor
from torch.nn import functional

import fusioncache

Change = Callable[[Mutable], AbstractContextManager[Any]]


class Claiming(OperatorExecutor):
    """A third-party executor with a cache key."""

    def __init__(self, key: str):
        super().__init__("claiming")
        self.key = key

    def cache_key(self) -> str:
        return self.key


def make_options(transform: str = "a", executor: str = "a") -> dict[str, Any]:
    return {"transforms": [Keyed(transform)], "executors": [Claiming(executor), *fusioncache.executors()]}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Mutable, torch.Tensor]:
    """Returns a store with the program of the model, the model, and the program's input."""
    directory = tmp_path_factory.mktemp("programs")
    return directory, *store_program(directory, Mutable, jit=make_options())


def put(find: Callable[[Mutable], Any], name: Any, value: Any) -> Change:
    """Returns a change that sets an attribute of an object, or an item of a dict."""
    return lambda model: changed(find(model), name, value)


def env(**variables: str) -> Change:
    return lambda model: mock.patch.dict("os.environ", variables)


def forward_hook(module: Any, args: Any, output: Any) -> Any:
    return output * 2


CHANGES: dict[str, tuple[Change, str]] = {
    # The model.
    "attribute": (put(lambda m: m, "scale", 3.0), "`model.scale`"),
    "new attribute": (put(vars, "fresh", 1), "`model.fresh`"),
    "forward of one object": (put(lambda m: vars(m.first), "forward", torch.tanh), "`model.first.forward`"),
    "tied parameters": (lambda m: attribute(m.second, "weight", m.first.weight), "`model.second.weight`"),
    "forward hook": (lambda m: m.first.register_forward_hook(forward_hook), "hook"),
    "hook after accumulation": (
        lambda m: m.first.weight.register_post_accumulate_grad_hook(lambda grad: grad),
        "`model.first.weight`",
    ),
    "global hook": (lambda m: torch.nn.modules.module.register_module_forward_hook(forward_hook), ""),
    # Classes.
    "attribute of the class": (put(lambda m: Norm, "order", 4), "`mutated_model.Norm.order` is 4"),
    "property of a base class": (
        put(lambda m: Base, "bias_scale", property(lambda self: 0.25)),
        "`mutated_model.Base.bias_scale`",
    ),
    "method": (put(lambda m: Norm, "forward", lambda self, x: x), "`mutated_model.Norm.forward` is <function"),
    # Names that interpreted code looks up.
    "global number": (put(lambda m: own, "GAIN", 2.5), "mutated_model.GAIN"),
    "item of a global dict": (put(lambda m: own.CONFIG, "eps", 1e-2), "mutated_model.CONFIG"),
    "code of a global function": (
        lambda m: attribute(own.square, "__code__", (lambda x: x + x).__code__),
        "mutated_model.square",
    ),
    "closure cell": (lambda m: attribute(own.scaler.__closure__[0], "cell_contents", 1.75), "mutated_model.scaler"),
    "function of torch": (put(lambda m: functional, "linear", lambda x, weight, bias=None: x @ weight), "linear"),
    "function of torch's C code": (put(lambda m: torch, "rsqrt", torch.sqrt), "torch.rsqrt"),
    "builtin": (put(lambda m: builtins, "min", lambda *args: 3), "min"),
    # The environment.
    "autocast": (lambda m: torch.autocast("cpu", torch.bfloat16), "autocast"),
    "default device": (lambda m: torch.device("meta"), ""),
    "variable of the environment that the model reads": (env(MUTATED_MODEL="1"), "the variable `MUTATED_MODEL`"),
    "function map": (
        put(lambda m: thunder.torch._torch_to_thunder_function_map, functional.silu, thunder.torch.relu),
        "Thunder's `map.torch.nn.functional.silu`",
    ),
    "version of torch": (put(lambda m: torch, "__version__", "2.99.0"), "torch"),
}


def load(stored: tuple[Any, Mutable, torch.Tensor], *args: Any, jit: Any = None, **options: Any) -> Any:
    """Loads the program without Thunder's interpreter, and returns the transform."""
    directory, model, x = stored
    compiled, transform = compile_anew(model, directory, jit=jit or make_options(), explain=True, **options)
    with without_interpreter():
        compiled(*args or (x,))
    return transform


def assert_derived_again(
    stored: tuple[Any, Mutable, torch.Tensor], capfd: Any, named: str, *args: Any, **options: Any
) -> None:
    capfd.readouterr()
    with pytest.raises(AssertionError, match="a program was derived that should have been loaded"):
        load(stored, *args, **options)
    said = capfd.readouterr().err
    assert named in said.partition("the program of Mutable was traced again: ")[2], said


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_a_miss_that_is_named(stored, capfd, what):
    change, named = CHANGES[what]
    _, model, _ = stored
    with change(model):
        assert_derived_again(stored, capfd, named)


INPUTS: dict[str, tuple[Callable[[torch.Tensor, Mutable], Any], str]] = {
    "shape": (lambda x, _: x[:2], "args.0"),
    "requires_grad": (lambda x, _: x.clone().requires_grad_(), "args.0"),
    "subclass": (lambda x, _: x.as_subclass(Own), "args.0"),
    "memory of a parameter": (lambda _, model: model.norm.weight.detach().expand(3, 4), "args.0"),
    "truth value in place of 1": (lambda x, _: (x, True), "args"),
}


@pytest.mark.parametrize("what", INPUTS)
def test_another_input_is_a_miss_that_is_named(stored, capfd, what):
    change, named = INPUTS[what]
    _, model, x = stored
    args = change(x, model)
    assert_derived_again(stored, capfd, named, *(args if type(args) is tuple else (args,)))


@pytest.mark.parametrize(("of", "name"), [("transform", "transforms.1"), ("executor", "executors.claiming.key")])
def test_another_option_is_a_miss_that_is_named(stored, capfd, of, name):
    assert_derived_again(stored, capfd, f"the option {name} is b, and was a", jit=make_options(**{of: "b"}))


SAME: dict[str, Change] = {
    "gradients": lambda model: attribute(model.first.weight, "grad", torch.ones(4, 4)),
    "values of a parameter": lambda model: attribute(model.first.weight, "data", model.first.weight.detach() + 1),
    "global that nothing reads": put(lambda model: vars(own), "FRESH", 1),
    "variable of the environment that nothing reads": env(FRESH="1"),
    "hooks of saved tensors": lambda model: torch.autograd.graph.save_on_cpu(),
}


@pytest.mark.parametrize("what", SAME)
def test_what_does_not_matter_leaves_the_program_as_it_is(stored, what):
    """It is loaded, and a program that Thunder derives now has the same texts."""
    directory, model, x = stored
    with SAME[what](model):
        assert counts(load(stored)) == (1, 0, {})
        compiled, transform = compile_anew(model, directory, jit=make_options(), verify=True)
        compiled(x)
    assert transform.stats().verified and counts(transform) == (0, 0, {})
