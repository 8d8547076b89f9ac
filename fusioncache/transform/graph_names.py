"""Names for Dynamo's graphs: the user's class or function, and the number of the part.

Dynamo makes a graph of a model's computation, and Thunder's splitter cuts it at operations that Thunder lacks. Each
part that goes to Thunder is a compiled function with a program of its own. All parts have the class ``GraphModule``. So
a part is named after the frame that Dynamo is translating while Thunder compiles the part. Names are for messages only,
and in no key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, ref

from fusioncache.process.warning import log_errors
from fusioncache.transform.dynamo_graphs import is_graph

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_(\d+)")
"""The name of the code that resumes after a graph break, with its function and the line of the break."""


@dataclass(slots=True, eq=False)
class GraphParts:
    """One graph of Dynamo.

    Attributes:
        owner: the class whose method it is made from, or the function.
        line: the line of the graph break after which it begins; None if it begins with the function.
        count: number of its parts that went to Thunder so far: all, once one of them is called.
    """

    owner: str
    line: int | None
    count: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One part of a graph, with its number: the first is 1."""

    graph: GraphParts
    number: int

    @property
    def name(self) -> str:
        """The part's readable name, such as ``GPT2LMHeadModel (part 3 of 11)``."""
        graph = self.graph
        rest = [] if graph.line is None else [f"from line {graph.line}"]
        rest += [f"part {self.number} of {graph.count}"] if graph.count > 1 else []
        return f"{graph.owner} ({', '.join(rest)})" if rest else graph.owner


@dataclass(slots=True)
class GraphNames:
    """The names of all parts of graphs of this process. Holds the parts weakly.

    Dynamo compiles one graph at a time, with all its parts in sequence.
    """

    _last: tuple[ref[Any], GraphParts] | None = None
    _parts: WeakKeyDictionary[Any, Part] = field(default_factory=WeakKeyDictionary)

    def note(self, module: Any) -> None:
        """Names a module that Thunder is compiling, if Dynamo made it. Never raises."""
        if not is_graph(module):
            return
        with log_errors("a graph has no name"):  # if Dynamo does not compile it now, or in another version of Dynamo
            from torch._dynamo.symbolic_convert import InstructionTranslator

            output = InstructionTranslator.current_tx().output
            if self._last is None or self._last[0]() is not output:
                self._last = ref(output), _read_frame(output.root_tx)
            graph = self._last[1]
            graph.count += 1
            self._parts[module] = Part(graph, graph.count)

    def name_of(self, function: Any) -> str | None:
        """Returns the name of a graph's part; None for any other function."""
        part = self._parts.get(function) if is_graph(function) else None
        return None if part is None else part.name


def _read_frame(translator: Any) -> GraphParts:
    """Returns the graph of the frame that Dynamo is translating, with the name of its owner."""
    import torch

    code, owner = translator.f_code, translator.f_locals.get("self")
    resumed = _RESUMED.fullmatch(code.co_name)
    if isinstance(owner, torch.nn.Module):
        name = type(owner).__name__
    else:
        name = resumed[1] if resumed else code.co_qualname.rpartition("<locals>.")[2]
    return GraphParts(name, int(resumed[2]) if resumed else None)


@cache
def graph_names_of_process() -> GraphNames:
    """Returns the names of this process's graphs, the same object each time."""
    return GraphNames()
