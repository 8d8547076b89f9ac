"""The user's lines of source for a graph of Dynamo. Thunder knows the lines of the graph's own code only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fusioncache.observe.record.observations import Line
from fusioncache.transform.dynamo_graphs import is_graph

_GENERATED = "<eval_with_key>"
"""How the file names begin that torch gives to the code of graphs."""
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')


def is_generated(file: str) -> bool:
    """Tells whether this is the file name of a graph's own code."""
    return file.startswith(_GENERATED)


def find_graph_lines(function: Any, is_library: Callable[[str], bool]) -> Mapping[int, Line]:
    """Returns the user's line for each line of a graph's own code; none for a function that is no graph.

    torch numbers the nodes that each line of the code is of, and has the frames of each node: the last one counts.

    Args:
        function: what Thunder compiles.
        is_library: tells whether a file of source belongs to an installed package.
    """
    if not is_graph(function):
        return {}
    nodes = list(function.graph.nodes)
    start, numbers = getattr(function, "_prologue_start", 0), getattr(function, "_lineno_map", None) or {}
    found = {}
    for number, node in numbers.items():
        frames = _FRAME.findall(nodes[node].stack_trace or "") if node is not None and node < len(nodes) else ()
        if frames:
            file, line = frames[-1]
            found[start + number] = Line(file, int(line), is_library(file))
    return found
