"""Random functions full of operations that have nothing to do, and what can be told of the tensors that they return."""

import linecache
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

_SAME_SHAPE = (
    *(
        "torch.sin({a})",
        "{a} + 1",
        "{a} * {b}",
        "{a} - {b}",
        "torch.softmax({a}, -1)",
        "torch.where({a} > 0, {a}, {b})",
    ),
    *("{a}.reshape(4, 4)", "{a}.reshape({a}.shape)", "{a}.view({a}.shape)", "{a}.view(2, 8).view(4, 4)"),
    *("{a}.flatten().view(4, 4)", "{a}.expand(4, 4)", "{a}.sum(0, keepdim=True).expand(4, 4)", "{a}.squeeze(0)"),
    *(
        "torch.where({a} > 0, {a}, {b})",
        "{a}[:]",
        "{a}[...]",
        "{a}[0:4]",
        "{a}.permute(0, 1)",
        "{a}.transpose(0, 0)",
        "{a}.t()",
    ),
    *("{a}.to(torch.float32)", "{a}.float()", "{a}.type_as({b})", "{a}.contiguous()", "torch.zeros_like({a})"),
    *("{a}[:2].expand(2, 4).repeat(2, 1)", "torch.cat([{a}, {b}])[:4]", "torch.nn.functional.dropout({a}, 0.0)"),
)
_OTHER_SHAPE = (
    "{a}[1]",
    "{a}[:, 1:]",
    "{a}.sum(-1)",
    "{a}.view(-1)",
    "{a}.reshape(16)",
    "{a}.unsqueeze(0)",
    "{a}[None]",
)


def draw_program(seed: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Returns a function of two tensors, whose source Thunder finds."""
    chance = random.Random(seed)
    names, lines = ["p", "q"], []
    for number in range(chance.randint(1, 6)):
        value = chance.choice(_SAME_SHAPE).format(a=chance.choice(names), b=chance.choice(names))
        lines.append(f"    v{number} = {value}")
        names.append(f"v{number}")
    results = [chance.choice(names[2:] if chance.random() < 0.9 else names) for _ in range(chance.randint(1, 4))]
    for number, name in enumerate(results):
        if chance.random() < 0.2:
            lines.append(f"    r{number} = {chance.choice(_OTHER_SHAPE).format(a=name)}")
            results[number] = f"r{number}"
    source = "\n".join(["def program(p, q):", *lines, f"    return ({', '.join(results)},)", ""])
    name, namespace = f"<program {seed}>", {"torch": torch}
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    exec(compile(source, name, "exec"), namespace)
    return namespace["program"]  # type: ignore[return-value]


def draw_arguments(seed: int, *, gradients: bool) -> Callable[[], list[torch.Tensor]]:
    """Returns what makes arguments, the same each time. Now and then both are one tensor."""
    chance = random.Random(seed)
    kinds = [chance.choice(("rows", "rows", "columns", "gaps", "expanded")) for _ in range(2)]
    is_one = chance.random() < 0.1

    def make() -> list[torch.Tensor]:
        torch.manual_seed(seed)
        arguments = [_make(kind).detach().requires_grad_(gradients) for kind in kinds]
        return [arguments[0]] * 2 if is_one else arguments

    return make


def _make(kind: str) -> torch.Tensor:
    match kind:
        case "columns":
            return torch.randn(4, 4).t()
        case "gaps":
            return torch.randn(8, 8)[::2, ::2]
        case "expanded":
            return torch.randn(4).expand(4, 4)
    return torch.randn(4, 4)


def observe(function: Callable[..., Any], make: Callable[[], list[torch.Tensor]]) -> Iterator[tuple[str, Any]]:
    """Yields what can be told of a function's results, each with what it says."""
    arguments = make()
    results = function(*arguments)
    tensors = [*arguments, *results]
    places = [(tensor.untyped_storage().data_ptr(), tensor.storage_offset()) for tensor in tensors]
    yield "objects", [[one is other for other in tensors] for one in tensors]
    yield "memory", [[one[0] == other[0] and one[1] - other[1] for other in places] for one in places]
    yield "strides", [(tuple(tensor.shape), tensor.stride()) for tensor in results]
    yield "gradients", [(tensor.requires_grad, tensor.is_leaf) for tensor in results]
    yield "values", [tensor.detach().clone() for tensor in results]
    for number, result in enumerate(results):
        for name, act in (("unsqueeze", _unsqueeze), ("add", _add), ("multiply", _multiply), ("hook", _hook)):
            if name == "hook" and not result.requires_grad:
                continue
            arguments = make()
            others = function(*arguments)
            try:
                yield f"{name} {number}", act(arguments, others, number)
            except RuntimeError as error:
                yield f"{name} {number}", str(error)[:70]


def _unsqueeze(arguments: list[torch.Tensor], results: Any, number: int) -> Any:
    with torch.no_grad():
        results[number].unsqueeze_(0)
    return [tuple(tensor.shape) for tensor in (*arguments, *results)]


def _add(arguments: list[torch.Tensor], results: Any, number: int) -> Any:
    with torch.no_grad():
        results[number].add_(100)
    return [tensor.detach().clone() for tensor in (*arguments, *results)]


def _multiply(arguments: list[torch.Tensor], results: Any, number: int) -> Any:
    results[number].mul_(2)
    return [tensor.detach().clone() for tensor in (*arguments, *results)]


def _hook(arguments: list[torch.Tensor], results: Any, number: int) -> Any:
    results[number].register_hook(lambda gradient: gradient * 10)
    sum((result * (index + 1)).sum() for index, result in enumerate(results)).backward()
    return [argument.grad for argument in arguments]


def says_the_same(one: Any, other: Any) -> bool:
    """True if two observations are equal, and tensors among them nearly."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(says_the_same, one, other))
    return type(one) is type(other) and one == other
