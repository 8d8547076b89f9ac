"""The name of a template in a trace."""

from __future__ import annotations

from fusioncache.ir import Graph, Key
from fusioncache.ir.ops import RESIDUAL, op_traits

_MOST_WORDS = 3


def template_name(graph: Graph, key: Key) -> str:
    """Returns a Python identifier such as ``residual_tanh_3f9a2c71``: telling ops, then the start of the digest."""
    words = list(dict.fromkeys(op.name.rpartition(".")[2] for op in graph.ops))
    telling = [word for word in words if not op_traits(f"prims.{word}").common] or words
    if RESIDUAL in telling:
        telling.remove(RESIDUAL)
        telling.insert(0, RESIDUAL)
    summary = "_".join(word.strip("_") for word in telling[:_MOST_WORDS])
    return f"{summary}_{key.digest[:8]}"
