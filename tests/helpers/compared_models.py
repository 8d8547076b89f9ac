"""Models whose programs Thunder alone derives at each length, compared call by call with those of our transform."""

from pathlib import Path
from typing import Any

import torch
from stored_programs import compile_anew
from torch.utils._pytree import tree_flatten, tree_leaves


def train(compiled: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Returns the results of a training step: their structure, the results, gradients of parameters and arguments."""
    parameters = compiled.parameters() if isinstance(compiled, torch.nn.Module) else ()
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor) and each.requires_grad]
    leaves = [*parameters, *(each for each in given if each.is_leaf)]
    for each in leaves:
        each.grad = None
    results, structure = tree_flatten(compiled(*args, **kwargs))
    trained = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    if trained:
        sum(each.float().square().sum() for each in trained).backward()
    return [str(structure), *results, *(each.grad for each in leaves)]


def are_equal(found: list[Any], expected: list[Any]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(
        torch.equal(one, other) if isinstance(one, torch.Tensor) else (type(one), one) == (type(other), other)
        for one, other in pairs
    )


class ComparedModel:
    """A model with Thunder alone, which derives each length, and with our transform over a store in a directory."""

    def __init__(self, model: Any, directory: Path, **options: Any):
        self.model = model
        self.own, _ = compile_anew(model, directory / "own", programs=False, sizes="static", **options)
        self.compiled, self.transform = compile_anew(model, directory / "store", **options)

    def check(self, *args: Any, **kwargs: Any) -> None:
        assert are_equal(train(self.compiled, *args, **kwargs), train(self.own, *args, **kwargs))

    @property
    def uninterpreted_programs(self) -> int:
        """Number of programs that were filled in, or made by Thunder's passes alone."""
        stats = self.transform.stats()
        return stats.programs_filled + stats.programs_replayed
