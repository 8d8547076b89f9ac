"""The registry of accelerators: their names, their options, and which of them a transform uses.

The core shares and compiles regions. Each accelerator makes that faster in another way, and can be switched off alone:
by the user, or because the installed Thunder lacks something that it relies on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fusioncache.accelerators.graphs.graph_capture import make_graphs
from fusioncache.accelerators.precompile.ahead import Precompilation, find_precompilation
from fusioncache.accelerators.programs.program_list import order_entries
from fusioncache.accelerators.programs.programs import ProgramKeeper
from fusioncache.accelerators.residual.plans import ResidualOptions, ResidualPlan
from fusioncache.accelerators.residual.recompute import ResidualStreams
from fusioncache.accelerators.schedule.scheduling import CollectiveOptions, Collectives
from fusioncache.accelerators.splitting import Splitting
from fusioncache.accelerators.steps.lean_steps import LeanSteps
from fusioncache.cache.generals import Sizes
from fusioncache.process.settings import ACCELERATORS
from fusioncache.thunder_adapter.installation import install
from fusioncache.transform.passes import Accelerator
from fusioncache.transform.transform import TemplateTransform
from fusioncache.verification.verifier import VerifyMode


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``FusionCache`` for accelerators.

    Attributes:
        tracing: whether Thunder's tracing is made faster.
        programs: whether whole programs are stored.
        sizes: which regions that differ in sizes alone share a compilation.
        graphs: whether programs are captured in CUDA graphs; None uses the environment variable.
        lean: ``"auto"``, or ``"thunder"`` to leave steps as Thunder makes them.
        schedule: options for collectives.
        residual: options for residual streams.
        jobs: the number of worker processes that compile; None for as many as pay off.
        lengths: for which templates are compiled before a call has them.
        precompiles: whether anything is compiled before it is called.
        splitting: whether operations that Thunder lacks are replaced in Dynamo's graphs.
    """

    tracing: bool
    programs: bool
    sizes: Sizes
    graphs: bool | None
    lean: str
    schedule: CollectiveOptions
    residual: ResidualOptions
    jobs: int | None
    lengths: tuple[int, ...] = ()
    precompiles: bool = True
    splitting: bool = True

    def without(self, names: Iterable[str]) -> Options:
        """Returns the options with these accelerators switched off."""
        changes: dict[str, Any] = {}
        for name in names:
            changes |= SWITCHES[name]
        return replace(self, **changes)


SWITCHES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "programs": {"programs": False},
        "sizes": {"sizes": Sizes.STATIC},
        "tracing": {"tracing": False},
        "lean steps": {"lean": "thunder"},
        "graphs": {"graphs": False},
        "schedule": {"schedule": CollectiveOptions.of("thunder", None, None)},
        "residual": {"residual": ResidualOptions(False, ResidualPlan.INLINE, None)},
        "precompile": {"jobs": 0, "precompiles": False},
        "splitting": {"splitting": False},
    }
)
"""All accelerators, each with the options that switch it off."""


def find_unwanted(accelerators: Collection[str] | None) -> frozenset[str]:
    """Returns the accelerators that the option of ``FusionCache``, or else the environment variable, leaves out.

    Raises:
        TypeError: if the option is a string.
        ValueError: if a name is unknown.
    """
    if isinstance(accelerators, str):
        raise TypeError(f"accelerators must be a list of names or None, got {accelerators!r}")
    if accelerators is None:
        said = ACCELERATORS.get_text()
        names = {name.strip() for name in said.split(",")} - {"none"} if said else SWITCHES.keys()
    else:
        said, names = "", set(accelerators)
    unknown = sorted(names - SWITCHES.keys())
    if unknown:
        place = ACCELERATORS.name if said else "accelerators"
        raise ValueError(f"{place} must be names out of {', '.join(SWITCHES)}, got {', '.join(map(repr, unknown))}")
    return frozenset(SWITCHES) - names


def make_accelerators(
    transform: TemplateTransform, options: Options, verify: VerifyMode | None, *, explains: bool
) -> Iterator[Accelerator]:
    """Yields the accelerators that a transform uses.

    Args:
        transform: the transform.
        options: for the accelerators.
        verify: when templates are verified; None for never.
        explains: whether the transform explains why something was compiled or traced again.
    """
    compares = verify in (VerifyMode.FIRST, VerifyMode.EVERY)
    if options.tracing:
        install()
    if options.splitting:
        yield Splitting()
    if options.lean == "auto":
        yield LeanSteps(transform.count_taken_out, order_entries)
    yield Collectives(options.schedule, transform.report_unchanged)
    yield ResidualStreams(options.residual, transform)
    if not transform.compiler:
        return
    stores = options.programs and options.tracing
    precompilation: Precompilation | None = None
    if options.precompiles:
        precompilation = find_precompilation(transform, options.jobs, compares=compares, waits=stores)
    if precompilation:
        yield precompilation
    if stores:
        replays = options.sizes is not Sizes.STATIC
        helpers = precompilation.helpers if precompilation else None
        yield ProgramKeeper(
            transform, helpers, explains=explains, verifies=compares, replays=replays, lengths=options.lengths
        )
    if graphs := make_graphs(options.graphs, transform.ledger, verifies=compares):
        yield graphs
