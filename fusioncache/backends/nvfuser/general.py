"""A general region as nvFuser's ``FusionDefinition``: sizes that vary are symbolic extents, other variables are inputs.

Thunder's translators write most operations, and ours those for which Thunder wants plain sizes. Writing one needs
nvFuser, and no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from fusioncache.backends.nvfuser.definition import define, nvfuser_executor
from fusioncache.ir import Const, Declined, GeneralRegion, Scope
from fusioncache.ir.graph import Arg

_INTEGER = re.compile(r"(?<![\w.-])(?<!dim=)[1-9]\d*(?![\w.])")
"""An integer of a definition that may be made of a size: not 0, -1, or the dimension whose size is asked for."""


def define_general(general: GeneralRegion, layouts: Sequence[Any]) -> Any:
    """Returns a general region as a ``FusionDefinition``.

    Args:
        general: the region.
        layouts: of the arguments: see ``describe_arguments``. There are none for the variables among the inputs.

    Raises:
        Declined: if the definition has an integer that those of the regions have not.
        Exception: whatever Thunder or nvFuser raise.
    """
    definition = define(general.graph, layouts, TRANSLATORS)
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
        raise Declined("a size that nvFuser's definition takes for constant", Scope.GENERAL)


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
