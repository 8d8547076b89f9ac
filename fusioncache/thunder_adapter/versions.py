"""The versions of Thunder that were tried, and the combinations with torch that fail without fusioncache as well.

The faults were found by running one script (jit, module, training, thunderfx, autograd.Function) with each combination.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fusioncache.process.sources import digest_sources

TRIED: Mapping[str, str] = MappingProxyType(
    {
        "0.2.6": "07ff75b02527f853015c7d3a0592746445fee864",
        "0.2.7.dev20260201": "b355071944649c5ffb3396612902d4e1b1da9848",
    }
)
"""The versions in which all tests pass, each with the digest of its sources."""


def is_tried() -> bool:
    """True if the installed Thunder is a version that was tried, with unchanged sources."""
    return TRIED.get(read_version()) == read_digest()


def read_version() -> str:
    """Returns the version of the installed Thunder, or a phrase if it reports none."""
    import thunder

    return str(getattr(thunder, "__version__", "of no known version"))


def read_own_version() -> str:
    """Returns the version that the installed Thunder reports.

    Raises:
        ImportError: if it reports none.
    """
    from thunder import __version__

    return str(__version__)


def read_digest() -> str:
    """Returns the digest of the installed Thunder's sources; empty if they were changed since they were imported."""
    import thunder

    try:
        return digest_sources(str(Path(str(thunder.__file__)).parent))
    except ValueError:
        return ""


def find_import_problem() -> str:
    """Returns why Thunder cannot be imported; empty if it can."""
    try:
        import thunder  # noqa: F401
    except Exception as error:  # an installed Thunder may fail in many ways
        return f"Thunder cannot be imported: {type(error).__name__}: {error}"
    return ""


DYNAMO, FUNCTION, ANY = "thunderfx", "an autograd.Function in thunderfx", "Thunder"
"""The features that a fault may affect."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A combination of torch and Thunder that fails without fusioncache as well.

    Attributes:
        about: the affected feature: ``DYNAMO``, ``FUNCTION`` or ``ANY``.
        torch: the first affected version, as (major, minor). All later ones are affected as well.
        thunder: a regular expression for the start of affected versions.
        problem: the symptom, as a sentence.
        advice: the workaround.
    """

    about: str
    torch: tuple[int, int]
    thunder: str
    problem: str
    advice: str


FAULTS = (
    Fault(
        DYNAMO,
        (2, 12),
        r"0\.2\.",
        "thunderfx raises TypeError (MappingKeysView has no len())",
        "use thunder.jit, or install torch 2.10 or 2.11",
    ),
    Fault(
        FUNCTION,
        (2, 11),
        r"0\.2\.6",
        "an autograd.Function in thunderfx raises KeyError (args_tensor_mask)",
        "use thunder.jit, or install torch 2.10",
    ),
    Fault(
        FUNCTION,
        (2, 11),
        r"0\.2\.7",
        "the gradient of an autograd.Function in thunderfx is wrong, and nothing is raised",
        "use thunder.jit, or install torch 2.10",
    ),
    Fault(
        ANY,
        (2, 10),
        r"0\.2\.7",
        "max and min of a list, of three values, or with a key raise TypeError in a model",
        "compare two values at a time, or install lightning-thunder==0.2.6",
    ),
)


def find_faults(*about: str) -> list[Fault]:
    """Returns the faults of the installed versions that affect these features, or any feature if none is given."""
    return [
        fault
        for fault in FAULTS
        if fault.torch <= read_torch_version()
        and re.match(fault.thunder, read_version())
        and (not about or fault.about in about)
    ]


def read_torch_version() -> tuple[int, int]:
    """Returns the major and minor version of torch."""
    import torch

    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return int(major), int(minor)


def explain_fault(fault: Fault) -> str:
    """Returns a sentence with the installed versions, the fault's problem and its advice."""
    import torch

    versions = f"torch {torch.__version__} and Thunder {read_version()}"
    return f"with {versions}, also without fusioncache, {fault.problem}: {fault.advice}"


def find_fault_of_graph(graph: Any) -> Fault | None:
    """Returns the fault that a Dynamo graph triggers in thunderfx; None if it triggers none.

    Args:
        graph: ``torch.fx.GraphModule``.
    """
    fault = next(iter(find_faults(DYNAMO, FUNCTION)), None)
    if fault is not None and fault.about == FUNCTION:
        has_function = any("autograd_function_apply" in str(node.target) for node in graph.graph.nodes)
        return fault if has_function else None
    return fault
