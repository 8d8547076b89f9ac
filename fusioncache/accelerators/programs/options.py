"""The ingredient ``jit options``: the options of ``thunder.jit``, its executors and its transforms with their options.

A transform or an executor may change a program in any way, and the recorder does not observe it. So each transform must
declare its dependencies. Any transform or executor may implement this protocol::

    def cache_key(self) -> str: ...

It returns all that its programs depend on besides their inputs: options, versions. The text is stored in clear, so it
must not contain a secret. The transforms of Thunder that are listed here need no such method. Programs with any other
transform are not stored.

A process group is created by each job, and has no value of its own. A program depends on its ranks, the size of the job
and its communication backends. A program refers to a group by its position among those of the model. No program
contains its rank, so that all ranks can share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.functions import describe_group
from fusioncache.accelerators.programs.text import AgreementReference, GroupReference, Reference
from fusioncache.accelerators.schedule.scheduling import CollectiveAgreement, GroupSequence, counts_of_process
from fusioncache.cache.peers import find_job_store
from fusioncache.ir import Declined, Scope, is_declined
from fusioncache.ir.keys import NamedValue

_IGNORED_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    "thunder.transforms.constant_folding.ConstantFolding": frozenset(),
    "thunder.transforms.extraction_only_prologue_transform.ExtractionOnlyPrologueTransform": frozenset(),
    "thunder.transforms.prune_prologue_checks.PrunePrologueChecks": frozenset(),
    "thunder.distributed.transforms.fsdp_v2.FSDPTransform": frozenset({"process_group", "global_rank"}),
    "thunder.distributed.transforms.ddp_v2.DDPTransform": frozenset({"process_group"}),
    "thunder.transforms.materialization.MaterializationTransform": frozenset({"init", "have_materialized"}),
}
"""Transforms of Thunder that depend on nothing but their attributes. For each, the attributes to leave out: no trace
depends on them, or they are described with the model (process groups, the rank, the origin of parameter values)."""


def find_groups(compile_data: Any) -> tuple[Any, ...]:
    """Returns the distinct process groups of a model that is distributed over ranks; none if it is not distributed.

    Args:
        compile_data: Thunder's ``CompileData`` of the model.
    """
    transforms = getattr(compile_data, "transforms", None) or ()
    given = [compile_data.process_group_for_ddp, *(getattr(each, "process_group", None) for each in transforms)]
    return tuple({id(group): group for group in given if group is not None}.values())


def read_groups(compile_data: Any) -> Iterator[NamedValue]:
    """Yields the properties of the job that a program depends on; nothing if the model is not distributed.

    Raises:
        Declined: if a group cannot be described, such as one without this rank or one that was destroyed.
    """
    groups = find_groups(compile_data)
    if not groups:
        return
    try:
        yield "process_groups", len(groups)
        for number, group in enumerate(groups):
            yield f"process_groups.{number}", describe_group(group)
        yield "process_groups.job", describe_group(None)
    except Exception as error:  # torch raises anything here
        raise Declined(f"a process group of the model cannot be described: {error}", Scope.PROGRAM) from error


def refer_to_group(group: Any, compile_data: Any) -> GroupReference | None:
    """Returns a reference to a process group; None if it is not one of the model's."""
    for number, own in enumerate(find_groups(compile_data)):
        if own is group:
            return GroupReference(number, describe_group(group))
    return None


def resolve_group(reference: GroupReference, compile_data: Any) -> Any:
    """Returns the process group that a reference names.

    Raises:
        ValueError: if the model has no group at this position, or one with another description.
    """
    groups = find_groups(compile_data)
    if reference.number >= len(groups):
        raise ValueError(f"the model has no process group {reference.number}")
    group = groups[reference.number]
    if describe_group(group) != reference.text:
        raise ValueError(f"process group {reference.number} is another one: {describe_group(group)}")
    return group


def _sort(value: Any) -> Any:
    """Returns a dict with string keys sorted by key, anything else unchanged."""
    is_named = type(value) is dict and all(type(name) is str for name in value)
    return dict(sorted(value.items())) if is_named else value


def refer_to_part(value: Any, compile_data: Any) -> Reference | None:
    """Returns a reference to a part of a model's job, a process group or an agreement; None for anything else."""
    if not isinstance(value, CollectiveAgreement):
        return refer_to_group(value, compile_data)
    stretches = [(refer_to_group(each.group, compile_data), tuple(each.messages)) for each in value.stretches]
    found = [(group, messages) for group, messages in stretches if group is not None]
    return AgreementReference(tuple(found)) if len(found) == len(stretches) else None


def resolve_part(reference: Reference, compile_data: Any) -> Any:
    """Returns the part of a model's job that a reference names: a process group or an agreement.

    Raises:
        ValueError: if it names no part, or the job has no such part.
    """
    match reference:
        case GroupReference():
            return resolve_group(reference, compile_data)
        case AgreementReference(stretches):
            return _agree([(resolve_group(group, compile_data), messages) for group, messages in stretches])
    raise ValueError(f"a {type(reference).__name__} is nothing of the job's")


def _agree(stretches: list[tuple[Any, tuple[str, ...]]]) -> CollectiveAgreement:
    """Returns the agreement of ranks on these collectives of each group.

    Raises:
        ValueError: if the job has no store.
    """
    from torch.distributed import get_rank

    store = find_job_store()
    if store is None:
        raise ValueError("the ranks of the job have no store")
    found = [GroupSequence.of(group, messages) for group, messages in stretches]
    return CollectiveAgreement(found, get_rank(), store, counts_of_process())


_REPLACEMENT_ADVICE = {"thunder.transforms.cudagraph.CUDAGraphTransform": "use FusionCache(graphs=True) instead"}
"""Transforms of Thunder that fusioncache replaces, each with the advice for the error message."""

_DESCRIBED_ELSEWHERE = frozenset(
    {
        "fn",
        "executor_lookasides",
        "executors_list",
        "transforms",
        "compile_options",
        "debug_options",
        "langctx",
        "process_group_for_ddp",
        "autocast_stack",
        "is_grad_enabled",
        "get_computation_and_inputs",
        "_get_computation_and_inputs",
        "populate_cache_info",
        "acquire_initial_trace",
        "apply_transforms_and_build_cache_entry",
        "debug_log",
        "_thunder_module_map",
    }
)
"""Attributes of Thunder's ``CompileData`` that are described in another way or elsewhere, or are internal functions and
tables of Thunder. All others are options."""

_TABLES = frozenset({"_name", "_implmap", "_lookasides", "_opmap"})
"""Attributes of every executor, described separately. Deriving a program does not read ``_opmap``."""


def read_options(describer: Describer, definitions: Definitions, compile_data: Any) -> Iterator[NamedValue]:
    """Yields the options of ``thunder.jit`` by name, then the executors, then the transforms, both in their order.

    Raises:
        Declined: if a transform does not declare its dependencies, or an option cannot be described.
    """
    yield from _read_own_options(describer, definitions, compile_data)
    yield "executors", " ".join(_name_of(executor) for executor in compile_data.executors_list)
    for executor in compile_data.executors_list:
        yield from read_executor(definitions, executor)
    yield "lookasides", definitions.name(compile_data.executor_lookasides)
    for number, transform in enumerate(compile_data.transforms):
        yield f"transforms.{number}", write_transform(describer, transform)
        # The transform has declared what its class depends on besides its code.
        with definitions.trusting():
            yield f"transforms.{number}.class", definitions.name(type(transform))


def _read_own_options(describer: Describer, definitions: Definitions, compile_data: Any) -> Iterator[NamedValue]:
    known = vars(compile_data)
    for name in sorted(known.keys() - _DESCRIBED_ELSEWHERE):
        yield name, definitions.name(known[name])
    yield "langctx", compile_data.langctx.name
    for group in ("compile_options", "debug_options"):
        options = known[group] if isinstance(known[group], dict) else vars(known[group])
        for name, value in sorted(options.items(), key=lambda option: str(option[0])):
            yield f"{group}.{_write_name(name)}", describer.describe(value, name)


def _name_of(executor: Any) -> str:
    """Returns an executor's name; "(ad-hoc)" for the one that Thunder makes for each function and names by its id."""
    return _write_name(executor.name) if is_shared(executor) else "(ad-hoc)"


def read_executor(definitions: Definitions, executor: Any) -> Iterator[NamedValue]:
    """Yields the class, version and state of an executor, and its implementation of each operation.

    Raises:
        Declined: if its ``cache_key`` fails, its fuel is limited, or something in its tables cannot be described.
    """
    from fusioncache.thunder_adapter.accelerator_api import FUEL_LEVEL

    name = f"executors.{_name_of(executor)}"
    own = call_cache_key(executor)
    with definitions.trusting() if own is not None else nullcontext():
        yield f"{name}.class", definitions.name(type(executor))
    yield f"{name}.version", str(executor.version)
    if own is not None:
        yield f"{name}.key", own
    elif getattr(executor, "_optimization_fuel", FUEL_LEVEL.UNLIMITED) is not FUEL_LEVEL.UNLIMITED:
        raise Declined(
            f"the optimization fuel of the executor {_name_of(executor)} is limited, and tracing consumes it",
            Scope.PROGRAM,
        )
    elif is_shared(executor):
        for key, value in sorted(vars(executor).items()):
            if key not in _TABLES:
                yield f"{name}.{key}", definitions.name(value)
    # The operations of the ad hoc executor have new names in each trace. Only its lookasides outlive a trace.
    with definitions.trusting() if own is not None else nullcontext():
        if is_shared(executor):
            yield f"{name}.operations", definitions.name(executor.implmap)
        yield f"{name}.lookasides", definitions.name(executor._lookasides)


def is_shared(executor: Any) -> bool:
    """True if compiled functions share an executor; False for the ad hoc one that Thunder makes for each function."""
    from fusioncache.thunder_adapter.accelerator_api import TemporaryExecutor

    return type(executor) is not TemporaryExecutor


def write_transform(describer: Describer, transform: Any) -> str:
    """Returns the dependencies of a transform: its ``cache_key()``, or the attributes of a listed one of Thunder.

    Raises:
        Declined: if it has neither, its ``cache_key()`` fails, or an attribute cannot be described.
    """
    cls = type(transform)
    name = f"{cls.__module__}.{cls.__qualname__}"
    own = call_cache_key(transform)
    if own is not None:
        return own
    if name not in _IGNORED_ATTRIBUTES:
        advice = _REPLACEMENT_ADVICE.get(name, "add one that returns its settings")
        raise Declined(f"the transform {name} has no method cache_key(): {advice}", Scope.PROGRAM)
    # Thunder iterates over the names of a tied parameter as a set of strings, whose order differs between processes,
    # and looks parameters up by name. So they are sorted by name.
    kept = {key: _sort(value) for key, value in sorted(vars(transform).items()) if key not in _IGNORED_ATTRIBUTES[name]}
    # The function map does not cover the module of its class.
    return f"{name} {describer.describe(kept)} {describer.describe(cls)}"


def call_cache_key(owner: Any) -> str | None:
    """Returns the ``cache_key()`` of a transform or an executor; None if it has no such method.

    Raises:
        Declined: if the method raises, or returns anything but a string.
    """
    method = getattr(type(owner), "cache_key", None)
    if method is None:
        return None
    name = f"{type(owner).__module__}.{type(owner).__qualname__}"
    try:
        key = method(owner)
    except Exception as error:
        if is_declined(error, Scope.PROGRAM):
            raise
        raise Declined(f"cache_key() of {name} failed: {type(error).__name__}", Scope.PROGRAM) from error
    if not isinstance(key, str):
        raise Declined(f"cache_key() of {name} returned no text", Scope.PROGRAM)
    return " ".join(key.split())


def _write_name(name: Any) -> str:
    return "_".join(str(name).split())
