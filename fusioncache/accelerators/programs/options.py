"""The ingredient ``jit options``: what ``thunder.jit`` was told, its executors and its transforms with their options.

A transform or an executor may change a program in any way, and nothing of it is watched. So each transform has to say
what it depends on. There is a small protocol for this, and transforms and executors of anybody may follow it::

    def cache_key(self) -> str:
        \"\"\"Returns what the programs that this takes part in depend on, beside its inputs: options, versions.

        It is stored as it is, so there must be no secret in it.
        \"\"\"

Those of Thunder's own that are listed here do without. Programs with any other are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from fusioncache.accelerators.programs import cuda_graphs
from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.process_groups import write_sharing_key
from fusioncache.ir.errors import Declined, Scope, is_declined
from fusioncache.ir.key_text import NamedValue

if TYPE_CHECKING:
    from fusioncache.accelerators.programs.describe import Describer

_KEYED = frozenset(
    {
        "thunder.transforms.constant_folding.ConstantFolding",
        "thunder.transforms.extraction_only_prologue_transform.ExtractionOnlyPrologueTransform",
        "thunder.transforms.prune_prologue_checks.PrunePrologueChecks",
    }
)
"""Transforms of Thunder's whose attributes say all that they depend on."""

_ELSEWHERE = frozenset(
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
"""Attributes of Thunder's ``CompileData`` that are described in another way or elsewhere, or are functions and tables
of Thunder's own. All others are options."""

_TABLES = frozenset({"_name", "_implmap", "_lookasides", "_opmap"})
"""What each executor has. Nothing is looked up in its ``opmap`` while a program is derived."""


def read_options(describer: Describer, definitions: Definitions, compile_data: Any) -> Iterator[NamedValue]:
    """Yields the options of ``thunder.jit`` by name, then the executors, then the transforms, both in their order.

    Raises:
        Declined: if a transform does not say what it depends on, or an option cannot be described.
    """
    yield from _read_own_options(describer, definitions, compile_data)
    yield "executors", " ".join(_name_of(executor) for executor in compile_data.executors_list)
    for executor in compile_data.executors_list:
        yield from _read_executor(describer, definitions, executor)
    yield "lookasides", definitions.name(compile_data.executor_lookasides)
    for number, transform in enumerate(compile_data.transforms):
        yield f"transforms.{number}", write_transform(describer, definitions, transform)
        # What the class does besides its code, the transform has said.
        with definitions.trusting():
            yield f"transforms.{number}.class", definitions.name(type(transform))


def _read_own_options(describer: Describer, definitions: Definitions, compile_data: Any) -> Iterator[NamedValue]:
    known = vars(compile_data)
    for name in sorted(known.keys() - _ELSEWHERE):
        yield name, definitions.name(known[name])
    yield "langctx", compile_data.langctx.name
    for group in ("compile_options", "debug_options"):
        options = known[group] if isinstance(known[group], dict) else vars(known[group])
        for name, value in sorted(options.items(), key=lambda option: str(option[0])):
            yield f"{group}.{_write_name(name)}", describer.describe(value, name)


def _name_of(executor: Any) -> str:
    """Returns an executor's name. That of the one that Thunder makes for each function is its id."""
    from fusioncache.thunder_adapter.accelerator_api import TemporaryExecutor

    return "(ad-hoc)" if type(executor) is TemporaryExecutor else _write_name(executor.name)


def _read_executor(describer: Describer, definitions: Definitions, executor: Any) -> Iterator[NamedValue]:
    """Yields what an executor is, and what it does with each operation."""
    from fusioncache.thunder_adapter.accelerator_api import FUEL_LEVEL, TemporaryExecutor

    name = f"executors.{_name_of(executor)}"
    own = ask_for_key(executor)
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
    elif type(executor) is not TemporaryExecutor:
        for key, value in sorted(vars(executor).items()):
            if key not in _TABLES:
                yield f"{name}.{key}", definitions.name(value)
    # Of the ad hoc executor only the lookasides outlive a trace: its operations have new names each time.
    with definitions.trusting() if own is not None else nullcontext():
        if type(executor) is not TemporaryExecutor:
            yield f"{name}.operations", definitions.name(executor.implmap)
        yield f"{name}.lookasides", definitions.name(executor._lookasides)


def write_transform(describer: Describer, definitions: Definitions, transform: Any) -> str:
    """Returns what a transform says that it depends on.

    Raises:
        Declined: if it does not say, or one of Thunder's has an option that cannot be described.
    """
    cls = type(transform)
    name = f"{cls.__module__}.{cls.__qualname__}"
    own = ask_for_key(transform)
    if own is not None:
        return own
    # Those of Thunder's are in no module that the function map looks over.
    if name == cuda_graphs.TRANSFORM:
        return cuda_graphs.write_transform_key(transform)
    shares = write_sharing_key(describer, transform)
    if shares is not None:
        return shares
    if name not in _KEYED:
        raise Declined(
            f"the transform {name} has no method cache_key(): add one that returns its settings", Scope.PROGRAM
        )
    return f"{definitions.name(transform)} {describer.describe(cls)}"


def ask_for_key(owner: Any) -> str | None:
    """Returns what a transform or an executor says that its programs depend on; None if it has no ``cache_key``.

    Raises:
        Declined: if it does not know either.
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
