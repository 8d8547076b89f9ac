"""A general region as nvFuser's ``FusionDefinition``: sizes that vary are symbolic extents, other variables are inputs.

Thunder's translators write most operations, and ours those for which Thunder wants plain sizes. Writing one needs
nvFuser, and no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import Any

from fusioncache.backends.api import NotGeneral
from fusioncache.backends.nvfuser.definition import define, nvfuser_executor
from fusioncache.ir import Const, GeneralRegion, Graph
from fusioncache.ir.graph import Arg

_INTEGER = re.compile(r"(?<![\w.-])(?<!dim=)[1-9]\d*(?![\w.])")
"""An integer of a definition that may be made of a size: not 0, -1, or the dimension whose size is asked for."""


def define_general(general: GeneralRegion, layouts: Sequence[Any]) -> Any:
    """Returns a general region as a ``FusionDefinition``.

    Args:
        general: the region.
        layouts: of the arguments: see ``describe_arguments``. There are none for the variables among the inputs.

    Raises:
        NotGeneral: if the definition has an integer that those of the regions have not.
        Exception: whatever Thunder or nvFuser raise.
    """
    definition = _define(general.graph, layouts)
    # Where a size is 1, a definition of sizes that are known may leave out a dimension that the region has.
    known = {each for op in general.graph.ops for each in _list_integers((*op.args, *(arg for _, arg in op.kwargs)))}
    _check_integers(definition, known, [define(region, layouts) for region in general.regions])
    return definition


def _list_integers(arg: Arg) -> Iterator[str]:
    """Yields the integers in an argument of an operation, as a definition has them."""
    if isinstance(arg, tuple):
        for each in arg:
            yield from _list_integers(each)
    elif isinstance(arg, Const) and arg.kind == "int":
        yield arg.text


def _check_integers(definition: Any, known: AbstractSet[str], others: Sequence[Any]) -> None:
    """Refuses a definition with an integer that is neither known nor in all others: it would be made of some size."""
    common = set.intersection(*(set(_INTEGER.findall(repr(other))) for other in others))
    if not (common | known).issuperset(_INTEGER.findall(repr(definition))):
        raise NotGeneral("a size that nvFuser's definition takes for constant")


def _define(graph: Graph, layouts: Sequence[Any]) -> Any:
    """Does as Thunder's ``create_fd``, with our translators where there is one."""
    from fusioncache.backends.bound_symbols import bind

    bound, executor = bind(graph), nvfuser_executor()
    definition = executor.FusionDefinition()
    definition._selected_device = None
    values = executor.utils.ProxyDict()
    with definition:
        for number, proxy in enumerate(bound.inputs):
            layout = layouts[number] if number < len(layouts) else None
            _add_input(executor, definition, values, proxy, layout)
        for symbol in bound.bound_symbols:
            # Of primitives it is an enumeration's, of torch's functions a text.
            name = getattr(symbol.sym.id, "name", symbol.sym.id)
            translate = TRANSLATORS.get(name) or executor.get_translator(symbol)
            results = translate(*symbol.args, **symbol.kwargs, fd=definition, lc_to_nv_map=values)
            for proxy, result in zip(_listed(symbol.output), _listed(results), strict=False):
                if proxy is not None:
                    values[proxy] = result
        for proxy in bound.outputs:
            definition.add_output(values[proxy])
    return definition


def _add_input(executor: ModuleType, definition: Any, values: Any, proxy: Any, layout: Any) -> None:
    from thunder.core.proxies import NumberProxy

    if isinstance(proxy, NumberProxy):
        values[proxy] = definition.define_scalar(executor.lcdtype_to_nvdtype(proxy.python_type))
        return
    contiguity, stride_order, _ = layout
    shape = [-1 if isinstance(size, NumberProxy) else size for size in proxy._shape]
    tensor = definition.define_tensor(
        shape=shape,
        contiguity=contiguity,
        dtype=executor.lcdtype_to_nvdtype(proxy.dtype),
        stride_order=stride_order,
        is_cpu=proxy.device == executor.cpu,
    )
    values[proxy] = tensor
    for dimension, size in enumerate(proxy._shape):
        if isinstance(size, NumberProxy):
            values[size] = tensor.size(dimension)


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (tuple, list)) else (values,)


def _full(shape: Sequence[Any], fill_value: Any, *, device: Any, dtype: Any, fd: Any, lc_to_nv_map: Any) -> Any:
    executor = nvfuser_executor()
    sizes = [executor.getnv(size, fd, lc_to_nv_map) for size in shape]
    fill = executor.getnv(fill_value, fd, lc_to_nv_map)
    executor._select_device(fd, device)
    return fd.ops.full(sizes, fill, executor.lcdtype_to_nvdtype(dtype))


def _pad(a: Any, padding_value: Any, padding_config: Sequence[Any], *, fd: Any, lc_to_nv_map: Any) -> Any:
    executor = nvfuser_executor()
    widths = [
        executor.getnv(width, fd, lc_to_nv_map) for low, high, _ in reversed(padding_config) for width in (low, high)
    ]
    tensor = executor.getnv(a, fd, lc_to_nv_map)
    return fd.ops.pad(tensor, widths, executor.getnv(padding_value, fd, lc_to_nv_map))


TRANSLATORS: Mapping[str, Callable[..., Any]] = {"FULL": _full, "PAD": _pad}
"""Our translators, by the name of the operation's id."""
