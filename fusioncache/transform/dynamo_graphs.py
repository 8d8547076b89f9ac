"""Graphs that Dynamo hands to Thunder: what they have in common, and what Thunder tells of each.

Thunder 0.2.6 appends to the list of transforms that it was given for each graph, and all graphs have that one list. So
whatever it says of a later graph counts for those before as well, and what they depend on changes each time. From the
first transform of ours on, each graph has a list of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from fusioncache.process.warning import warn_once
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.thunder_adapter.versions import DYNAMO, explain_fault, find_faults
from fusioncache.transform.dynamo_account import dynamo_clock_of_process

_COMPILER, _UTILS = "thunder.dynamo.compiler", "thunder.dynamo.utils"
"""Where Thunder takes Dynamo's graphs, and splits them. To import these takes a tenth of a second, which most programs
can do without."""


def separate_graphs() -> None:
    """Gives each graph transforms of its own from now on, if this process may have graphs."""
    if _COMPILER in sys.modules:
        dynamo_clock_of_process()
        for fault in find_faults(DYNAMO):
            warn_once(explain_fault(fault))
        for capability in ("own transforms of graphs", "account of graphs", "answers to the splitter"):
            install_more(capability)


def give_own_transforms(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has Thunder append to a list that no other graph has."""

    @wraps(original)
    def _with_prologue_pruning_transform(*, current_thunder_options: Mapping[str, Any], **others: Any) -> Any:
        own = {**current_thunder_options, "transforms": list(current_thunder_options.get("transforms", ()))}
        return original(current_thunder_options=own, **others)

    return _with_prologue_pruning_transform


def is_graph(function: Any) -> bool:
    """True if a function is a graph."""
    import torch

    return isinstance(function, torch.fx.GraphModule)


def describe_graph(module: Any) -> Iterator[str]:
    """Yields what graphs of one function have in common: what they compute, but for sizes."""
    import torch

    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.nn.Parameter):
            yield f"parameter {value.dtype} {tuple(value.shape)}"
        elif not isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
            target = getattr(node.target, "__qualname__", node.target)
            yield f"{node.op} {'' if node.op == 'placeholder' else target} {getattr(value, 'dtype', '')}"
