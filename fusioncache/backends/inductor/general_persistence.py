"""TorchInductor's code for any sizes as bytes: the code, and the conditions under which it is right.

What varies is a symbolic integer from the start, one for each variable, and code takes these behind its tensors. What
TorchInductor found out about them while it compiled, and how arguments lie, are conditions that each use asks first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fusioncache.backends.api import Compiled, GeneralFunction, Run
from fusioncache.backends.inductor.artifacts import (
    check_arguments_of_any_size,
    load_kernels,
    pack,
    read_signature,
    unpack,
)
from fusioncache.backends.inductor.carriers import CarriedRegion
from fusioncache.backends.inductor.conditions import check_condition, evaluate
from fusioncache.backends.inductor.general import GeneralCode
from fusioncache.backends.inductor.language import check_wrapper, define
from fusioncache.backends.inductor.package import Fakes, Package, make_package
from fusioncache.backends.inductor.persistence import guard_plain, refuse_unpersistable
from fusioncache.ir import Declined, Ref, Scope, Value, is_declined
from fusioncache.ir.strict_json import decode, encode

FORMAT = 1
_CONDITIONS = "conditions.json"


def persist_general(
    carried: CarriedRegion, args: Sequence[Any], values: Sequence[Value], mode: str | None
) -> Compiled[GeneralFunction]:
    """Compiles a region for any sizes and gives the artifacts to load it from, or the reason why there are none.

    Raises:
        Declined: if it cannot be compiled for any sizes.
        Exception: whatever ``GeneralCode`` raises, which compiles where code cannot be persisted.
    """
    try:
        return _compile(carried, args, values, mode)
    except Exception as error:  # a region that fails here may well work with torch.compile
        if is_declined(error, Scope.GENERAL):
            raise
        lasting = is_declined(error, Scope.STORING)
        is_refused = lasting or is_declined(error, Scope.STORING_NOW)
        reason = str(error) if is_refused else f"{type(error).__name__} where its code for any sizes is to be stored"
    return Compiled(GeneralCode(carried, args, values, mode).fit, None, reason, lasting)


def load_general(
    artifacts: Mapping[str, bytes], carried: CarriedRegion, args: Sequence[Any], mode: str | None, scratch: Path | None
) -> GeneralFunction:
    """Makes the function of artifacts. Nothing is compiled, nothing is run.

    Raises:
        ValueError: if they are none of this format, or not for this region.
        Declined: if the code is not in the language that is stored.
        OSError: if there is no room for temporary files.
    """
    signature = read_signature(artifacts)
    check_arguments_of_any_size(signature, carried.general.graph, args)
    wrapper, libraries = unpack(artifacts, signature)
    conditions = _read_conditions(artifacts, signature.wrapper, carried)
    try:
        run = define(
            check_wrapper(wrapper.decode(), dict(signature.kernels)), load_kernels(signature, libraries, scratch)
        )
    except ImportError as error:
        raise ValueError(f"a kernel that does not load: {error}") from error
    return partial(_fit, carried, mode, run, conditions)


def _compile(
    carried: CarriedRegion, args: Sequence[Any], values: Sequence[Value], mode: str | None
) -> Compiled[GeneralFunction]:
    from fusioncache.backends.bound_symbols import define_source

    for region in carried.general.regions:
        refuse_unpersistable(replace(region, inputs=carried.types), args)
    function = _with_symbols(define_source(carried.source(gpu=0)))
    symbols = _make_symbols(values)
    layouts = list(_describe_layouts(carried, args))
    package = make_package(function, _fake(layouts, args, symbols), mode)
    if package.outputs != len(carried.general.graph.outputs):
        raise Declined("outputs of TorchInductor's own", Scope.STORING)
    conditions = [*_write_layouts(layouts), *symbols.guards()]
    _check_conditions(conditions, carried)
    run = define(package.code, package.functions)
    run([*args, *values])  # what cannot run shows here
    return Compiled(partial(_fit, carried, mode, run, conditions), _pack(package, conditions, args), None)


def _pack(package: Package, conditions: Sequence[str], args: Sequence[Any]) -> Mapping[str, bytes]:
    artifacts = pack(package, args)
    wrapper = read_signature(artifacts).wrapper
    return {**artifacts, _CONDITIONS: encode({"format": FORMAT, "wrapper": wrapper, "conditions": conditions})}


def _read_conditions(artifacts: Mapping[str, bytes], wrapper: str, carried: CarriedRegion) -> list[str]:
    if _CONDITIONS not in artifacts:
        raise ValueError(f"artifacts without {_CONDITIONS}")
    belongs, texts = decode(artifacts[_CONDITIONS], "conditions", format=FORMAT).fields("wrapper", "conditions")
    if belongs.text() != wrapper:
        raise ValueError("conditions of other code")
    conditions = [text.text() for text in texts.items()]
    _check_conditions(conditions, carried)
    missing = set(_names_of_layouts(carried)).difference(*(text.split() for text in conditions))
    if missing:
        raise ValueError(f"conditions that say nothing of {min(missing)}")
    return conditions


def _check_conditions(conditions: Sequence[str], carried: CarriedRegion) -> None:
    names = {*_names_of_layouts(carried), *map(_name, range(len(carried.places)))}
    for text in conditions:
        check_condition(text, names)


def _fit(
    carried: CarriedRegion,
    mode: str | None,
    run: Run,
    conditions: Sequence[str],
    args: Sequence[Any],
    values: Sequence[Value],
) -> Run:
    """See ``GeneralFunction``."""
    names: dict[str, Any] = {_name(number): value for number, value in enumerate(values)}
    for number, arg in enumerate(args):
        for dimension, (size, stride) in enumerate(zip(arg.shape, arg.stride(), strict=True)):
            names |= {f"size_{number}_{dimension}": size, f"stride_{number}_{dimension}": stride}
    if not all(evaluate(text, names) for text in conditions):
        raise Declined("TorchInductor's code for any sizes excludes these sizes", Scope.GENERAL)
    numbers = list(values)
    return guard_plain(
        lambda args: run([*args, *numbers]),
        args,
        lambda args: GeneralCode(carried, args, values, mode).fit(args, values),
    )


def _name(variable: int) -> str:
    return f"v{variable}"


def _names_of_layouts(carried: CarriedRegion) -> Iterator[str]:
    for number, type_ in enumerate(carried.types):
        for dimension in range(len(type_.shape)):
            yield from (f"size_{number}_{dimension}", f"stride_{number}_{dimension}")


Layout = tuple[list[str], list[str]]
"""Sizes and strides of a tensor, made of the names of variables."""


def _describe_layouts(carried: CarriedRegion, args: Sequence[Any]) -> Iterator[Layout]:
    """Yields how arguments lie, as far as that follows from their sizes; other strides are what they are."""
    shapes = [type_.shape for type_ in carried.types]
    names = {
        shapes[place[0]][place[1]]: _name(number) for number, place in enumerate(carried.places) if place is not None
    }
    for arg, shape in zip(args, shapes, strict=True):
        sizes = [names[size] if isinstance(size, Ref) else str(size) for size in shape]
        yield sizes, _describe_strides(arg, sizes)


def _describe_strides(tensor: Any, sizes: Sequence[str]) -> list[str]:
    strides = [str(stride) for stride in tensor.stride()]
    follows: dict[int, str] = {}
    for dimension in sorted(range(tensor.dim()), key=lambda dimension: (tensor.stride(dimension), -dimension)):
        stride, size = tensor.stride(dimension), tensor.shape[dimension]
        strides[dimension] = follows.get(stride, str(stride)) if stride > 1 else str(stride)
        follows.setdefault(stride * size, f"{strides[dimension]}*{sizes[dimension]}")
    return strides


def _with_symbols(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function that can be traced with symbolic integers: in C++ some operations take plain ones only."""
    from torch._dispatch.python import enable_python_dispatcher

    def call(*args: Any) -> Any:
        with enable_python_dispatcher():
            return function(*args)

    return call


def _fake(layouts: Sequence[Layout], args: Sequence[Any], symbols: _Symbols) -> Fakes:
    import torch

    tensors = []
    with symbols.mode:
        for (sizes, strides), arg in zip(layouts, args, strict=True):
            shape, steps = ([evaluate(text, symbols.values) for text in texts] for texts in (sizes, strides))
            tensors.append(torch.empty_strided(shape, steps, dtype=arg.dtype, device=arg.device))
    return Fakes(symbols.mode, [*tensors, *symbols.values.values()])


def _write_layouts(layouts: Sequence[Layout]) -> Iterator[str]:
    for number, (sizes, strides) in enumerate(layouts):
        for dimension, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
            yield f"size_{number}_{dimension} == {size}"
            yield f"stride_{number}_{dimension} == {stride}"


@dataclass(frozen=True, slots=True)
class _Symbols:
    """A symbolic integer for each variable, by its name, and what torch finds out about them."""

    mode: Any
    values: Mapping[str, Any]
    guards: Callable[[], list[str]]


def _make_symbols(values: Sequence[Value]) -> _Symbols:
    """Makes the symbols. No two are taken for one because they are equal at first, and none for a constant."""
    from torch._dynamo.source import LocalSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    environment = ShapeEnv(duck_shape=False)
    sources = [LocalSource(_name(number)) for number in range(len(values))]
    symbols = [
        environment.create_symintnode(
            environment.create_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC), hint=value, source=source
        )
        for value, source in zip(values, sources, strict=True)
    ]

    def guards() -> list[str]:
        found: list[str] = environment.produce_guards(symbols, sources, source_ref=lambda source: source.local_name)
        return found

    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=environment)
    return _Symbols(mode, {source.local_name: symbol for source, symbol in zip(sources, symbols, strict=True)}, guards)
