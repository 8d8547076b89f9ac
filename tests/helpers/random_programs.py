"""Random programs over torch, written as source: many identities, views, layouts, and results that are inputs."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

SHAPES = ((), (1,), (4,), (3, 4), (3, 4), (3, 4), (4, 4), (4, 4), (1, 4), (3, 1), (0, 4), (2, 3, 4))
DTYPES = (torch.float32,) * 5 + (torch.float64, torch.bfloat16, torch.complex64)
LAYOUTS = ("contiguous", "contiguous", "transposed", "transposed", "sliced", "expanded", "offset")


def _split_forms(text: str) -> tuple[str, ...]:
    return tuple(text.split("; "))


IDENTITIES = _split_forms(
    "{a}.type_as({b}); {a}.to({a_dtype}); {a}.contiguous(); {a}.expand({a_shape}); {a}.reshape({a_shape}); "
    "{a}.view({a_shape}); {a}.permute({a_dims}); {a}.clone(); {a}.detach(); {a} + 0; {a} * 1; torch.flip({a}, ()); "
    "torch.flip({a}, (-1,)); {a}.squeeze(); {a}.flatten(); {a}[...]"
)
VIEWS = _split_forms(
    "{a}.transpose(0, -1); {a}.reshape(-1); {a}[::2]; {a}[1:]; {a}[0]; {a}.unsqueeze(0); {a}.unsqueeze(-1); "
    "{a}.squeeze(0); {a}.expand((2, *{a_shape})); {a}.expand({b_shape}); {a}.movedim(0, -1)"
)
CONVERSIONS = _split_forms(
    "{a}.to(torch.float32); {a}.to(torch.float64); {a}.to(torch.bfloat16); {a}.to(torch.complex64)"
)
UNARY = _split_forms(
    "torch.sin({a}); torch.cos({a}); torch.tanh({a}); torch.neg({a}); torch.abs({a}); torch.exp({a}); {a} * 2.5; "
    "1.5 - {a}"
)
COMMUTING = ("{a} + {b}", "{a} * {b}", "{a} == {b}", "{a} != {b}")
BINARY = _split_forms(
    "{a} - {b}; {a} / {b}; torch.fmod({a}, {b}); torch.maximum({a}, {b}); torch.where({a} > {b}, {a}, {b}); "
    "torch.where({a} > 0.5, {b}, {a})"
)
OTHERS = _split_forms(
    "{a}.sum(); {a}.sum(0); {a}.mean(-1); {a}.amax(-1); torch.var_mean({a}, dim=0, correction=0)[1]; "
    "torch.softmax({a}, -1); torch.cat(({a}, {b}), 0); torch.stack(({a}, {b}), 0); {a} @ {b}"
)
WRITES = ("{a}.add_({b})", "{a}.mul_(2.0)", "{a}.copy_({b})")
KINDS = (*(IDENTITIES, VIEWS, UNARY, COMMUTING) * 2, COMMUTING, CONVERSIONS, BINARY, OTHERS)


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor to be made, with random values. Programs depend on its layout."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    differentiable: bool

    def make(self, seed: int) -> torch.Tensor:
        chance = torch.Generator().manual_seed(seed)
        dtype = self.dtype if self.dtype.is_complex else torch.float32  # both parts of complex numbers are random
        made = self._laid_out(lambda *shape: (torch.rand(shape, generator=chance, dtype=dtype) + 0.5).to(self.dtype))
        return made.detach().requires_grad_(self.differentiable)

    def _laid_out(self, values: Callable[..., torch.Tensor]) -> torch.Tensor:
        shape, rank = self.shape, len(self.shape)
        if self.layout == "transposed" and rank > 1:
            return values(*shape[::-1]).permute(*reversed(range(rank)))
        if self.layout == "sliced" and rank:
            return values(*shape[:-1], 2 * shape[-1])[..., ::2]
        if self.layout == "expanded" and rank:
            return values(1, *shape[1:]).expand(shape)
        return values(2, *shape)[1] if self.layout == "offset" else values(*shape)


@dataclass(frozen=True, slots=True)
class RandomProgram:
    """A function of tensors: ``steps`` are expressions that make one value each, ``results`` the returned values."""

    arguments: tuple[Argument, ...]
    steps: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def source(self) -> str:
        names = ", ".join(f"x{number}" for number in range(len(self.arguments)))
        lines = [f"    v{number} = {step}" for number, step in enumerate(self.steps)]
        return "\n".join([f"def program({names}):", *lines, f"    return {', '.join(self.results)},"])

    def function(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"torch": torch}
        exec(compile(self.source, "<random program>", "exec"), names)
        return names["program"]

    def inputs(self, seed: int = 0) -> list[torch.Tensor]:
        return [argument.make(seed + number) for number, argument in enumerate(self.arguments)]

    def commuted(self, chance: random.Random) -> RandomProgram:
        """Returns the program with the operands of some commutative operations exchanged."""
        commuting = re.compile(r"([xv]\d+) (\+|\*|==|!=) ([xv]\d+)")
        steps = (commuting.sub(r"\3 \2 \1", step) if chance.random() < 0.7 else step for step in self.steps)
        return replace(self, steps=tuple(steps))

    def repeated(self, chance: random.Random) -> RandomProgram:
        """Returns the program, then a commuted copy on running sums of its arguments: regions of a trace that share."""
        start, inputs = len(self.steps), len(self.arguments)
        offset = {"x": start, "v": start + inputs}

        def renamed(text: str) -> str:
            return re.sub(r"\b([xv])(\d+)\b", lambda name: f"v{int(name[2]) + offset[name[1]]}", text)

        between = (f"torch.cumsum(x{number}, -1)" for number in range(inputs))
        steps = (*self.steps, *between, *map(renamed, self.commuted(chance).steps))
        return RandomProgram(self.arguments, steps, (*self.results, *map(renamed, self.results)))

    def laid_out_anew(self, chance: random.Random) -> RandomProgram:
        """Returns the program for arguments with other layouts."""
        return replace(self, arguments=tuple(replace(each, layout=chance.choice(LAYOUTS)) for each in self.arguments))


def make_random_program(seed: int) -> RandomProgram:
    """Returns a program that torch can run. Equal seeds give equal programs."""
    chance = random.Random(seed)
    main = chance.choice(SHAPES)
    differentiates, writes = chance.random() < 0.7, chance.random() < 0.1
    arguments = tuple(_arguments(chance, main, differentiates and not writes))
    values = {f"x{number}": argument.make(number) for number, argument in enumerate(arguments)}
    steps: list[str] = []
    wanted = chance.randint(1, 9)
    for _ in range(20 * wanted):
        found = _step(chance, values, writes)
        if found is not None:
            values[f"v{len(steps)}"] = found[1]
            steps.append(found[0])
        if len(steps) == wanted:
            break
    results = tuple(chance.choice([*values, *list(values)[-4:]]) for _ in range(chance.randint(1, 4)))
    return RandomProgram(arguments, tuple(steps), results)


def _arguments(chance: random.Random, main: tuple[int, ...], differentiates: bool) -> Iterator[Argument]:
    dtype = chance.choice(DTYPES)
    for _ in range(chance.randint(1, 4)):
        shape = main if chance.random() < 0.7 else chance.choice(SHAPES)
        own = dtype if chance.random() < 0.8 else chance.choice(DTYPES)
        yield Argument(shape, own, chance.choice(LAYOUTS), differentiates and chance.random() < 0.8)


def _step(chance: random.Random, values: dict[str, torch.Tensor], writes: bool) -> tuple[str, torch.Tensor] | None:
    """Returns an expression of these values and its result; None if torch cannot compute it, or it is too large."""
    form = chance.choice(WRITES if writes and chance.random() < 0.2 else chance.choice(KINDS))
    names = list(values)
    a, b = chance.choice([*names, *names[-2:]]), chance.choice(names)
    one, other = values[a], values[b]
    dims = ", ".join(map(str, range(one.dim()))) or "()"
    shapes = {"a_shape": tuple(one.shape), "b_shape": tuple(other.shape)}
    step = form.format(a=a, b=b, a_dtype=one.dtype, a_dims=dims, **shapes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = eval(step, {"torch": torch}, dict(values))
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    if not isinstance(result, torch.Tensor) or result.numel() > 256 or result.dim() > 4:
        return None
    return step, result
