"""Random single changes of a model, of the code it calls, of its globals and of torch, over a store with its programs.

    python tests/helpers/random_mutations.py --seed 1 --count 200

says what became of each. After a change a program is either derived, or the one that is loaded has the traces that
Thunder derives then, and the same bits. Programs of all changes before stay in the store, so that any of them may be
loaded wrongly.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import enum
import math
import random
import re
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from stored_programs import compile_anew, counts
from torch.nn import functional

_SUBJECT = Path(__file__).parent / "mutation_subject.py"
_NAME = "mutation_subject_at_random"
_OPERATORS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult}
_COMPARISONS: dict[type, type] = {ast.Gt: ast.LtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot}
_CALLS = {"silu": "gelu", "gelu": "silu", "softmax": "log_softmax", "tanh": "sin", "sqrt": "exp", "rsqrt": "exp"}

Apply = Callable[[types.ModuleType, Any], AbstractContextManager[Any]]
"""Changes something of the subject's module, of the model or of torch, for as long as the context lasts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A change.

    Attributes:
        text: what it is, for people.
        source: of the subject's module.
        apply: what else is changed, when a model was made.
    """

    text: str
    source: str
    apply: Apply


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a change.

    Attributes:
        what: "loaded", "derived" or "raised".
        refused: why a program was neither loaded nor kept.
        wrong: how what was loaded differs from what Thunder derives; None if it does not.
    """

    what: str
    refused: tuple[str, ...] = ()
    wrong: str | None = None


def draw_change(rng: random.Random) -> Change:
    """Draws a change of any kind."""
    return rng.choice((_draw_source, _draw_source, _draw_tree, _draw_global, _draw_library))(rng)


def try_change(change: Change, directory: Path) -> Outcome:
    """Makes the model, changes it, and trains it for a step over a store."""
    try:
        results, compiled, transform = _train(change, directory)
    except Exception as error:
        return Outcome("raised", (f"{type(error).__name__}: {error}",))
    loaded, _, refused = counts(transform)
    if not loaded:
        return Outcome("derived", tuple(refused))
    try:
        expected, derived, _ = _train(change, directory, programs=False)
    except Exception as error:
        return Outcome("loaded", wrong=f"Thunder raises {error!r}")
    if _list_statements(compiled) != _list_statements(derived):
        return Outcome("loaded", wrong="the traces differ")
    same = len(results) == len(expected) and all(map(_are_same, results, expected))
    return Outcome("loaded", wrong=None if same else "the bits differ")


def run_changes(seed: int, count: int, directory: Path) -> Iterator[tuple[Change, Outcome]]:
    """Tries the subject as it is, then a number of changes, then the subject again."""
    rng = random.Random(seed)
    as_it_is = Change("nothing", _SUBJECT.read_text(), _change_nothing)
    yield as_it_is, try_change(as_it_is, directory)
    for _ in range(count):
        change = draw_change(rng)
        yield change, try_change(change, directory)
    yield as_it_is, try_change(as_it_is, directory)


def _train(change: Change, directory: Path, **options: Any) -> tuple[list[torch.Tensor], Any, Any]:
    module = sys.modules[_NAME] = types.ModuleType(_NAME)
    try:
        exec(compile(change.source, _NAME, "exec"), vars(module))
        model = module.make_model()
        with change.apply(module, model):
            compiled, transform = compile_anew(model, directory, **options)
            result = compiled(torch.linspace(-1, 1, 16).reshape(2, 2, 4))
            result.sum().backward()
    finally:
        del sys.modules[_NAME]
    results = [result.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]
    return [*results, *model.buffers()], compiled, transform


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


def _list_statements(compiled: Any) -> list[list[str]]:
    """Returns the statements of the last traces, without comments."""
    import thunder

    lasts = (thunder.last_prologue_traces, thunder.last_traces, thunder.last_backward_traces)
    texts = [str(traces[-1]) for last in lasts if (traces := last(compiled))]
    return [[line.partition("  #")[0] for line in re.findall(r"^  [a-z(].*$", text, re.MULTILINE)] for text in texts]


def _change_nothing(module: types.ModuleType, model: Any) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


# The text of the subject.


def _draw_source(rng: random.Random) -> Change:
    tree = ast.parse(_SUBJECT.read_text())
    bodies = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign)]
    nodes = [node for body in bodies for node in ast.walk(body) if _is_changeable(node)]
    node: Any = rng.choice(nodes)
    before = ast.unparse(node)
    _change_node(node)
    return Change(f"line {node.lineno}: {before} -> {ast.unparse(node)}", ast.unparse(tree), _change_nothing)


def _is_changeable(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (bool, int, float)
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATORS
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in _COMPARISONS
    if isinstance(node, ast.Attribute):
        return node.attr in _CALLS
    return isinstance(node, ast.If | ast.IfExp)


def _change_node(node: Any) -> None:
    if isinstance(node, ast.Constant):
        node.value = _change_value(node.value, random.Random(0))
    elif isinstance(node, ast.BinOp):
        node.op = _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops = [_COMPARISONS[type(node.ops[0])]()]
    elif isinstance(node, ast.Attribute):
        node.attr = _CALLS[node.attr]
    else:
        node.test = ast.UnaryOp(ast.Not(), node.test)


# Values, in place or in place of others.


def _change_value(value: Any, rng: random.Random) -> Any:
    """Returns another value in place of a constant."""
    if type(value) is bool:
        return not value
    if isinstance(value, enum.Enum):
        return rng.choice([each for each in type(value) if each is not value])
    return value + 1 if type(value) is int else value * 1.5 + 0.25


def _is_constant(value: Any) -> bool:
    return type(value) in (bool, int, float) or isinstance(value, enum.Enum)


def _list_places(owner: Any) -> list[tuple[Any, Any]]:
    """Returns where constants are in a dict, a list or an object, and in those that it holds: whose and which."""
    items = enumerate(owner) if isinstance(owner, list) else owner.items() if isinstance(owner, dict) else None
    places = []
    for key, value in items if items is not None else sorted(vars(owner).items()):
        if _is_constant(value):
            places.append((owner, key))
        elif type(value) in (list, dict) or dataclasses.is_dataclass(type(value)):
            places += _list_places(value)
    return places


def _change_place(owner: Any, key: Any, rng: random.Random) -> None:
    if isinstance(owner, list | dict):
        owner[key] = _change_value(owner[key], rng)
    else:
        setattr(owner, key, _change_value(getattr(owner, key), rng))


def _change_later(text: str, seed: int, change: Callable[[types.ModuleType, Any, random.Random], Any]) -> Change:
    """Returns a change that draws the same again for each model that is made."""

    def apply(module: types.ModuleType, model: Any) -> AbstractContextManager[Any]:
        changed = change(module, model, random.Random(seed))
        return changed if hasattr(changed, "__enter__") else contextlib.nullcontext()

    return Change(f"{text}, seed {seed}", _SUBJECT.read_text(), apply)


# The tree of modules.


def _change_attribute(module: types.ModuleType, model: Any, rng: random.Random) -> None:
    places = [place for each in model.modules() for place in _list_places(each)]
    _change_place(*rng.choice(places), rng)


def _change_parameter(module: types.ModuleType, model: Any, rng: random.Random) -> None:
    owner, name = rng.choice([(each, name) for each in model.modules() for name in each._parameters])
    tensor = owner._parameters[name]
    if tensor is None:
        return
    made: Callable[[], torch.Tensor | None] = rng.choice((
        lambda: tensor.detach().clone(),
        lambda: tensor.detach().to(torch.bfloat16),
        lambda: tensor.detach().t().contiguous().t(),
        lambda: tensor.detach().new_zeros(2, *tensor.shape)[1],
        lambda: model.embedding.weight.detach(),
        lambda: None,
    ))  # fmt: skip
    other = made()
    owner._parameters[name] = None if other is None else torch.nn.Parameter(other, requires_grad=rng.random() < 0.7)


def _change_behaviour(module: types.ModuleType, model: Any, rng: random.Random) -> None:
    found = rng.choice([each for each in model.modules() if not isinstance(each, torch.nn.ModuleList)])
    rng.choice((
        lambda: found.eval(),
        lambda: found.requires_grad_(False),
        lambda: found.register_forward_hook(lambda module, args, output: output * 0.5),
        lambda: found.register_forward_pre_hook(lambda module, args: tuple(each + 1.0 for each in args)),
        lambda: found._forward_hooks.clear(),
        lambda: setattr(found, "__class__", type(type(found).__name__, (type(found),), {"__module__": _NAME})),
        lambda: setattr(found, "forward", lambda x: x * 1.0),
        lambda: model.blocks.append(model.blocks[0]),
        lambda: model.options.update(names=["embedding", "head"]),
    ))()  # fmt: skip


def _draw_tree(rng: random.Random) -> Change:
    change = rng.choice((_change_attribute, _change_attribute, _change_parameter, _change_behaviour))
    return _change_later(change.__name__.strip("_"), rng.randrange(1000), change)


# What the subject's module holds.


def _change_constant(module: types.ModuleType, model: Any, rng: random.Random) -> None:
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == _NAME]
    places = [(owner, name) for owner in classes for name in ("power", "bonus") if name in vars(owner)]
    _change_place(*rng.choice([*_list_places(module), *places]), rng)


def _change_function(module: types.ModuleType, model: Any, rng: random.Random) -> None:
    def change_cell() -> None:
        module.SCALER.__closure__[0].cell_contents += 1.0

    rng.choice((
        change_cell,
        lambda: setattr(module.shift, "__defaults__", (0.75,)),
        lambda: module.shift.__kwdefaults__.update(offset=0.5),
        lambda: setattr(module.shift, "__code__", module.squash.__wrapped__.__code__),
        lambda: module.ACTIVATIONS.update(silu=functional.relu),
        lambda: setattr(module.Base, "eps", property(lambda self: 0.5)),
        lambda: setattr(module.Norm, "combine", staticmethod(torch.sub)),
        lambda: setattr(module.Block, "combine", staticmethod(torch.sub)),
        lambda: setattr(module, "rsqrt", torch.exp),
        lambda: setattr(module, "F", types.SimpleNamespace(softmax=torch.log_softmax, silu=functional.silu)),
        lambda: module.CLAMP.keywords.update(max=0.5),
        lambda: setattr(module, "len", lambda value: 1),
        lambda: setattr(module.Norm, "forward", lambda self, x: x * self.weight),
        lambda: setattr(module.Placement.BEFORE, "note", 1),
    ))()  # fmt: skip


def _draw_global(rng: random.Random) -> Change:
    change = rng.choice((_change_constant, _change_function))
    return _change_later(change.__name__.strip("_"), rng.randrange(1000), change)


# Torch, Thunder and Python's library.


def _around(owner: Any, name: str) -> AbstractContextManager[Any]:
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **kwargs: original(*args, **kwargs) * 1.5)


@contextlib.contextmanager
def _with_default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _hook_everywhere() -> AbstractContextManager[Any]:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 0.5)
    return contextlib.ExitStack() if handle is None else contextlib.closing(types.SimpleNamespace(close=handle.remove))


def _patch_library(module: types.ModuleType, model: Any, rng: random.Random) -> Any:
    import thunder.torch

    table = thunder.torch._torch_to_thunder_function_map
    return rng.choice((
        lambda: _around(functional, "silu"),
        lambda: _around(functional, "softmax"),
        lambda: _around(functional, "linear"),
        lambda: _around(torch, "tanh"),
        lambda: _around(torch, "clamp"),
        lambda: _around(torch, "rsqrt"),
        lambda: _around(math, "sqrt"),
        lambda: mock.patch.object(torch.nn.Linear, "forward", lambda self, x: x @ self.weight),
        lambda: _around(torch.nn.Module, "__call__"),
        lambda: mock.patch.object(torch.nn.functional, "dropout", lambda x, *args: x * 2.0),
        lambda: mock.patch.dict(table, {functional.silu: thunder.torch.relu}),
        lambda: mock.patch.object(thunder.torch, "softmax", thunder.torch.log_softmax),
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autograd.set_detect_anomaly(True),
        _with_default_dtype,
        _hook_everywhere,
    ))()  # fmt: skip


def _draw_library(rng: random.Random) -> Change:
    return _change_later("patch_library", rng.randrange(1000), _patch_library)


def main() -> None:
    """Tries many changes, and exits with 1 if any program was loaded wrongly."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        for change, outcome in run_changes(options.seed, options.count, Path(directory)):
            wrong += outcome.wrong is not None
            print(outcome.what, change.text, *outcome.refused, outcome.wrong or "", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
