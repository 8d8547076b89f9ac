"""Which parameters of a model are cut among ranks, by the layers that a user names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from fusioncache.distributed.cuts import CutError, Shape, take_part


class Role(StrEnum):
    """How a layer is cut."""

    COLUMN = "column"
    """Its results are: of a linear layer each rank has some features, of an embedding some of the vocabulary."""
    ROW = "row"
    """What it takes is; ranks add up what it gives."""
    GATHERED = "gathered"
    """As a column layer, and each rank gets all of its result."""


@dataclass(frozen=True, slots=True)
class CutParameter:
    """A parameter that is cut.

    Attributes:
        layer: the name of the module that it is of.
        role: of that module.
        dim: the dimension along which it is cut.
        shape: of all of it.
    """

    layer: str
    role: Role
    dim: int
    shape: Shape

    def part(self, ranks: int) -> Shape:
        """Returns the shape of what one rank has."""
        return take_part(self.shape, self.dim, ranks)


def find_cut_parameters(model: Any, roles: Mapping[Role, Sequence[str]], ranks: int) -> Mapping[str, CutParameter]:
    """Returns the parameters that are cut, by their names; one that has several, under each.

    Args:
        model: a module.
        roles: patterns of names of modules for each role, as in ``"*.mlp.gate"``.
        ranks: how many there are.

    Raises:
        CutError: if a pattern fits no module, or a layer cannot be cut in this way.
    """
    found: dict[str, CutParameter] = {}
    for role, patterns in roles.items():
        for name, module in _find_modules(model, role, patterns):
            for own, parameter in _cut_layer(name, module, role, ranks):
                if own in found and found[own].role is not role:
                    raise CutError(f"{name} is named twice: as a {found[own].role} and as a {role} layer")
                found[own] = parameter
    _check_shared(model, found)
    return found


def _find_modules(model: Any, role: Role, patterns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(patterns, str):
        raise TypeError(f"{role} must be a sequence of names, got the text {patterns!r}")
    modules = dict(model.named_modules(remove_duplicate=False))
    for pattern in patterns:
        fitting = [name for name in modules if fnmatchcase(name, pattern)]
        if not fitting:
            raise CutError(f"the model has no layer {pattern!r}, which was named as a {role} layer")
        yield from ((name, modules[name]) for name in fitting)


def _cut_layer(name: str, module: Any, role: Role, ranks: int) -> Iterator[tuple[str, CutParameter]]:
    import torch

    if isinstance(module, torch.nn.Embedding) and role is Role.COLUMN:
        _check_embedding(name, module)
        what, dims = "embeddings", {"weight": 0}
    elif isinstance(module, torch.nn.Linear):
        what = "inputs" if role is Role.ROW else "outputs"
        dims = {"weight": 1} if role is Role.ROW else {"weight": 0, "bias": 0}
    else:
        raise CutError(f"{name} is a {type(module).__name__}, which cannot be a {role} layer")
    for own, dim in dims.items():
        parameter = getattr(module, own)
        if parameter is None:
            continue
        if parameter.is_meta:
            raise CutError(f"{name}.{own} is on the meta device: give it values before it is cut")
        if parameter.shape[dim] % ranks:
            raise CutError(f"{name} has {parameter.shape[dim]} {what}, which {ranks} ranks cannot share equally")
        yield f"{name}.{own}", CutParameter(name, role, dim, tuple(parameter.shape))


def _check_embedding(name: str, module: Any) -> None:
    for option in ("padding_idx", "max_norm"):
        if getattr(module, option) is not None:
            raise CutError(f"{name} has the option {option}, with which an embedding cannot be cut")
    if module.sparse or module.scale_grad_by_freq:
        raise CutError(f"{name} has sparse or scaled gradients, with which an embedding cannot be cut")


def _check_shared(model: Any, found: Mapping[str, CutParameter]) -> None:
    """Raises where a parameter of several names is cut under one of them only, or in two ways."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for shared in names.values():
        cuts = {found[name].dim if name in found else None for name in shared}
        if len(cuts) > 1:
            raise CutError(f"{' and '.join(shared)} are one parameter, which cannot be cut in two ways")
