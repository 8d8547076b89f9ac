"""Random single changes of a model, of the code that it calls and of what it reads, over a store with its programs.

    python tests/helpers/random_mutations.py --seed 1 --count 200

says what became of each. After a change a program is either derived, or the one that is loaded has the traces that
Thunder derives then, and the same bits. Programs of all changes before stay in the store, so that any of them may be
loaded wrongly.
"""

from __future__ import annotations

import argparse
import ast
import enum
import random
import re
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import thunder
import torch
from stored_programs import compile_anew, counts

_SUBJECT = Path(__file__).with_name("mutated_model.py").read_text()
_NAME = "model_that_is_changed_at_random"
_OPERATORS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult}
_COMPARISONS: dict[type, type] = {ast.Gt: ast.LtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot}
_CALLS = {"silu": "gelu", "gelu": "silu", "softmax": "log_softmax", "rsqrt": "exp"}


@dataclass(frozen=True, slots=True)
class Change:
    """A change.

    Attributes:
        text: what it is, for people.
        source: of the model's module.
        apply: what else is changed, when a model was made.
    """

    text: str
    source: str = _SUBJECT
    apply: Callable[[types.ModuleType, Any], None] = lambda module, model: None


@dataclass(frozen=True, slots=True)
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
    """Draws a change of the text, or of a constant that the model or its module holds."""
    return rng.choice((_draw_source, _draw_place))(rng)


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
    """Tries the model as it is, then a number of changes, then the model again."""
    rng = random.Random(seed)
    as_it_is = Change("nothing")
    for change in (as_it_is, *(draw_change(rng) for _ in range(count)), as_it_is):
        yield change, try_change(change, directory)


def _train(change: Change, directory: Path, **options: Any) -> tuple[list[torch.Tensor], Any, Any]:
    module = sys.modules[_NAME] = types.ModuleType(_NAME)
    try:
        exec(compile(change.source, _NAME, "exec"), vars(module))
        torch.manual_seed(0)
        model = module.Mutable()
        change.apply(module, model)
        compiled, transform = compile_anew(model, directory, **options)
        result = compiled(torch.linspace(-1, 1, 12).reshape(3, 4))
        result.sum().backward()
    finally:
        del sys.modules[_NAME]
    results = [result.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]
    return [*results, *model.buffers()], compiled, transform


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


def _list_statements(compiled: Any) -> list[list[str]]:
    """Returns the statements of the last traces, without comments."""
    lasts = (thunder.last_prologue_traces, thunder.last_traces, thunder.last_backward_traces)
    texts = [str(traces[-1]) for last in lasts if (traces := last(compiled))]
    return [[line.partition("  #")[0] for line in re.findall(r"^  [a-z(].*$", text, re.MULTILINE)] for text in texts]


def _draw_source(rng: random.Random) -> Change:
    tree = ast.parse(_SUBJECT)
    bodies = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign)]
    node: Any = rng.choice([node for body in bodies for node in ast.walk(body) if _is_changeable(node)])
    before = ast.unparse(node)
    _change_node(node)
    return Change(f"line {node.lineno}: {before} -> {ast.unparse(node)}", ast.unparse(tree))


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
        node.value = _change_value(node.value)
    elif isinstance(node, ast.BinOp):
        node.op = _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops = [_COMPARISONS[type(node.ops[0])]()]
    elif isinstance(node, ast.Attribute):
        node.attr = _CALLS[node.attr]
    else:
        node.test = ast.UnaryOp(ast.Not(), node.test)


def _draw_place(rng: random.Random) -> Change:
    seed = rng.randrange(1000)

    def apply(module: types.ModuleType, model: Any) -> None:
        owner, key = random.Random(seed).choice([place for each in (module, *model.modules()) for place in _find(each)])
        if isinstance(owner, list | dict):
            owner[key] = _change_value(owner[key])
        else:
            setattr(owner, key, _change_value(getattr(owner, key)))

    return Change(f"constant {seed}", apply=apply)


def _find(owner: Any) -> Iterator[tuple[Any, Any]]:
    """Yields where constants are in a dict, a list or an object, and in those that it holds: whose and which."""
    items = enumerate(owner) if isinstance(owner, list) else owner.items() if isinstance(owner, dict) else None
    for key, value in items if items is not None else sorted(vars(owner).items()):
        if type(value) in (bool, int, float) or isinstance(value, enum.Enum):
            yield owner, key
        elif type(value) in (list, dict) and key != "__builtins__":
            yield from _find(value)


def _change_value(value: Any) -> Any:
    """Returns another value in place of a constant."""
    if type(value) is bool:
        return not value
    if isinstance(value, enum.Enum):
        return next(each for each in type(value) if each is not value)
    return value + 1 if type(value) is int else value * 1.5 + 0.25


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
