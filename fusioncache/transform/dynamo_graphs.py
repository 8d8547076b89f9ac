"""Graphs that Dynamo hands to Thunder: a description without sizes, and separate transforms for each.

Thunder 0.2.6 appends, for each graph, to the list of transforms that it was given, and all graphs share this list. So
an entry for a later graph also applies to earlier ones, and changes what they depend on each time. Once the first
``FusionCache`` is made, each graph gets its own list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

import torch

from fusioncache.process.warning import warn_once
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.thunder_adapter.versions import DYNAMO, explain_fault, find_faults
from fusioncache.transform.dynamo_account import dynamo_clock_of_process

_COMPILER, _UTILS = "thunder.dynamo.compiler", "thunder.dynamo.utils"
"""Thunder's modules that take and split Dynamo's graphs. Importing them takes a tenth of a second, which most programs
need not spend."""


def separate_graphs() -> None:
    """Gives each graph its own transforms from now on, if this process may have graphs."""
    if _COMPILER in sys.modules:
        dynamo_clock_of_process()
        for fault in find_faults(DYNAMO):
            warn_once(explain_fault(fault))
        for capability in ("own transforms of graphs", "account of graphs", "answers to the splitter"):
            install_more(capability)


def give_own_transforms(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement with which Thunder appends to a list that no other graph shares."""

    @wraps(original)
    def _with_prologue_pruning_transform(*, current_thunder_options: Mapping[str, Any], **others: Any) -> Any:
        own = {**current_thunder_options, "transforms": list(current_thunder_options.get("transforms", ()))}
        return original(current_thunder_options=own, **others)

    return _with_prologue_pruning_transform


def is_graph(function: Any) -> bool:
    """True if a function is one of Dynamo's graphs."""
    return isinstance(function, torch.fx.GraphModule)


def describe_graph(module: Any) -> Iterator[str]:
    """Yields a description that graphs of one function share: their operations without sizes."""
    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.nn.Parameter):
            yield f"parameter {value.dtype} {tuple(value.shape)}"
        elif not isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
            target = getattr(node.target, "__qualname__", node.target)
            yield f"{node.op} {'' if node.op == 'placeholder' else target} {getattr(value, 'dtype', '')}"
