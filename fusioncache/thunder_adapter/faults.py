"""Combinations of Thunder and torch that fail or compute something wrong, without fusioncache as well.

They were found by running one script (jit, module, training, thunderfx, autograd.Function) with each combination.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fusioncache.thunder_adapter.version import read_version

SUPPORTED_TORCH = ((2, 10), (2, 11))
"""Versions of torch with which all is tested. 2.12 works with ``thunder.jit``."""
DYNAMO, FUNCTION, ANY = "thunderfx", "an autograd.Function in thunderfx", "Thunder"
"""What a fault is about."""
_LATEST = (9999, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A row.

    Attributes:
        about: ``DYNAMO``, ``FUNCTION`` or ``ANY``.
        torch: the first and the last version with it, as (major, minor).
        thunder: a pattern of the versions with it.
        problem: what happens, as a sentence.
        advice: what to do.
    """

    about: str
    torch: tuple[tuple[int, int], tuple[int, int]]
    thunder: str
    problem: str
    advice: str


FAULTS = (
    Fault(ANY, ((2, 13), _LATEST), r"0\.2\.", "Thunder cannot be imported", "install torch 2.10 or 2.11"),
    Fault(
        DYNAMO,
        ((2, 12), _LATEST),
        r"0\.2\.",
        "thunderfx raises TypeError (MappingKeysView has no len())",
        "use thunder.jit, or install torch 2.10 or 2.11",
    ),
    Fault(
        FUNCTION,
        ((2, 11), _LATEST),
        r"0\.2\.6",
        "an autograd.Function in thunderfx raises KeyError (args_tensor_mask)",
        "use thunder.jit, or install torch 2.10",
    ),
    Fault(
        FUNCTION,
        ((2, 11), _LATEST),
        r"0\.2\.7",
        "the gradient of an autograd.Function in thunderfx is wrong, and nothing is raised",
        "use thunder.jit, or install torch 2.10",
    ),
    Fault(
        ANY,
        ((2, 10), _LATEST),
        r"0\.2\.7",
        "max and min of a list, of three values, or with a key raise TypeError in a model",
        "compare two values at a time, or install lightning-thunder==0.2.6",
    ),
)


def find_faults(*about: str) -> list[Fault]:
    """Returns the faults of the installed combination, by default all of them."""
    torch = read_torch_version()
    thunder = read_version()
    return [
        fault
        for fault in FAULTS
        if fault.torch[0] <= torch <= fault.torch[1]
        and re.match(fault.thunder, thunder)
        and (not about or fault.about in about)
    ]


def read_torch_version() -> tuple[int, int]:
    """Returns major and minor version of torch."""
    import torch

    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return int(major), int(minor)


def explain_fault(fault: Fault) -> str:
    """Returns a fault as one sentence, with the versions that have it."""
    import torch

    versions = f"torch {torch.__version__} and Thunder {read_version()}"
    return f"with {versions}, also without fusioncache, {fault.problem}: {fault.advice}"


def find_fault_of_graph(graph: Any) -> Fault | None:
    """Returns the fault that a graph of Dynamo meets in thunderfx; None if it meets none.

    Args:
        graph: ``torch.fx.GraphModule``.
    """
    if faults := find_faults(DYNAMO):
        return faults[0]
    faults = find_faults(FUNCTION)
    if faults and any("autograd_function_apply" in str(node.target) for node in graph.graph.nodes):
        return faults[0]
    return None
