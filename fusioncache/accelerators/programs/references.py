"""References: how the text of a trace names what it calls, so that another process can find it.

They are data and resolve nothing: ``accelerators/programs/build.py`` does. None of them holds an object or code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusioncache.accelerators.programs.source import check_source, is_reviewed
from fusioncache.ir import Graph, Instance, codec
from fusioncache.ir.request import ArgumentLayouts
from fusioncache.ir.strict_json import Value
from fusioncache.template.plan import Arities, Plan

Option = str | bool | int | float | tuple[str, ...] | None
"""The value of a backend's option."""

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NAME = re.compile(r"[^\W\d]\w*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModuleReference:
    """A module.

    Attributes:
        module: its name.
    """

    module: str


@dataclass(frozen=True, slots=True)
class NamedReference:
    """A function, a class, a member of an enumeration or a constant of a module.

    Attributes:
        module: where it is.
        name: its qualified name there.
        text: describes it. What has the name in another process has to have the same; if it is empty, the versions of
            the packages say enough.
    """

    module: str
    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class SymbolReference:
    """The function with which one of Thunder's executors implements an operation.

    Attributes:
        executor: the executor's name.
        symbol: the operation's name among those of the executor.
        text: describes the function. What implements the operation in another process has to have the same.
    """

    executor: str
    symbol: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """Regions of a template with one number of residual terms.

    Attributes:
        arities: these numbers, one for each chain.
        plan: how the chains are summed.
        executor: the name of Thunder's executor that made the regions.
        instance: one of them.
        layouts: of the arguments, in each way that was foreseen. What is compiled for them may be missing.
    """

    arities: Arities
    plan: Plan
    executor: str
    instance: Instance
    layouts: tuple[ArgumentLayouts, ...] = ()


@dataclass(frozen=True, slots=True)
class TemplateReference:
    """A template that a trace calls.

    Attributes:
        backend: the name of what compiles it.
        options: of the backend, each with its name.
        graph: of the template, in canonical order.
        digest: of the template's key. What another process makes of the graph has to have it too.
        uses: the regions for which the template is called.
    """

    backend: str
    options: tuple[tuple[str, Option], ...]
    graph: Graph
    digest: str
    uses: tuple[TemplateUse, ...]


@dataclass(frozen=True, slots=True)
class TraceText:
    """The text of a trace, or of a part of one.

    Attributes:
        name: of its function.
        source: Python as Thunder prints it.
        context: what the names in it refer to, but for those that it imports and those that each prologue has.
    """

    name: str
    source: str
    context: Mapping[str, Reference] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CudaGraphReference:
    """A part of a trace that Thunder's ``CUDAGraphTransform`` captures in a CUDA graph and replays.

    Attributes:
        trace: the part.
        static_inputs: for each of its arguments, whether it always lies at the same place; None if that is asked when
            it is called.
    """

    trace: TraceText
    static_inputs: tuple[bool, ...] | None


@dataclass(frozen=True, slots=True)
class GroupReference:
    """A process group of the model that a program is for.

    Attributes:
        number: its place among those of the model.
        text: describes it. The one that has this place in another process has to have the same.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class AgreementReference:
    """Ranks telling each other of the collectives of a trace, before they first run them.

    Attributes:
        stretches: of each group the collectives, a line of text for each.
    """

    stretches: tuple[tuple[GroupReference, tuple[str, ...]], ...]


Reference = (
    ModuleReference
    | NamedReference
    | SymbolReference
    | TemplateReference
    | CudaGraphReference
    | GroupReference
    | AgreementReference
)


def encode_reference(reference: Reference) -> dict[str, Any]:
    """Returns a reference as fields of a body."""
    match reference:
        case ModuleReference(module):
            return {"kind": "module", "module": module}
        case NamedReference(module, name, text):
            return {"kind": "name", "module": module, "name": name, "text": text}
        case SymbolReference(executor, symbol, text):
            return {"kind": "symbol", "executor": executor, "symbol": symbol, "text": text}
        case CudaGraphReference(trace, static_inputs):
            return {"kind": "cuda graph", "trace": encode_trace(trace), "static_inputs": static_inputs}
        case GroupReference(number, text):
            return {"kind": "group", "number": number, "text": text}
        case AgreementReference(stretches):
            listed = [[encode_reference(group), messages] for group, messages in stretches]
            return {"kind": "agreement", "stretches": listed}
    return {
        "kind": "template",
        "backend": reference.backend,
        "options": dict(reference.options),
        "graph": codec.to_json(reference.graph),
        "digest": reference.digest,
        "uses": [_encode_use(use) for use in reference.uses],
    }


def _encode_use(use: TemplateUse) -> dict[str, Any]:
    return {
        "arities": use.arities,
        "plan": use.plan.value,
        "executor": use.executor,
        "instance": codec.to_json(use.instance),
        "layouts": codec.to_json(use.layouts),
    }


def encode_trace(trace: TraceText) -> dict[str, Any]:
    """Returns the text of a trace as fields of a body."""
    context = {name: encode_reference(reference) for name, reference in sorted(trace.context.items())}
    return {"name": trace.name, "source": trace.source, "context": context}


def decode_trace(value: Value) -> TraceText:
    """Returns the text of a trace that was encoded.

    Raises:
        ValueError: if the value is none, or has something else than one function and the imports of reviewed packages.
    """
    name, source, context = value.fields("name", "source", "context")
    references = {key: decode_reference(reference) for key, reference in _items(context)}
    if not all(map(_NAME.fullmatch, references)):
        raise context.error("an object with names as fields")
    try:
        check_source(name.text(_NAME), source.text())
    except ValueError as error:
        raise ValueError(f"{value.name} {error}") from error
    return TraceText(name.text(), source.text(), references)


def decode_reference(value: Value) -> Reference:
    """Returns the reference that was encoded.

    Raises:
        ValueError: if the value is none, or names what a stored program may not use.
    """
    kind = value.content.get("kind") if isinstance(value.content, dict) else None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise value.error(f"a reference of one of the kinds {', '.join(_READERS)}")
    return reader(value)


def _read_module(value: Value) -> ModuleReference:
    _, module = value.fields("kind", "module")
    if not is_reviewed(module.text(_MODULE)):
        raise module.error("a module that a stored program may use")
    return ModuleReference(module.text())


def _read_name(value: Value) -> NamedReference:
    _, module, name, text = value.fields("kind", "module", "name", "text")
    return NamedReference(module.text(_MODULE), name.text(_MODULE), text.text())


def _read_symbol(value: Value) -> SymbolReference:
    _, executor, symbol, text = value.fields("kind", "executor", "symbol", "text")
    return SymbolReference(executor.text(), symbol.text(), text.text())


def _read_cuda_graph(value: Value) -> CudaGraphReference:
    _, trace, static = value.fields("kind", "trace", "static_inputs")
    static_inputs = None if static.content is None else tuple(item.boolean() for item in static.items())
    return CudaGraphReference(decode_trace(trace), static_inputs)


def _read_group(value: Value) -> GroupReference:
    _, number, text = value.fields("kind", "number", "text")
    return GroupReference(number.integer(), text.text())


def _read_agreement(value: Value) -> AgreementReference:
    _, stretches = value.fields("kind", "stretches")
    return AgreementReference(tuple(map(_read_stretch, stretches.items())))


def _read_stretch(value: Value) -> tuple[GroupReference, tuple[str, ...]]:
    group, messages = value.items(2)
    return _read_group(group), tuple(message.text() for message in messages.items())


def _read_template(value: Value) -> TemplateReference:
    _, backend, options, graph, digest, uses = value.fields("kind", "backend", "options", "graph", "digest", "uses")
    return TemplateReference(
        backend.text(),
        tuple((name, _read_option(option)) for name, option in _items(options)),
        codec.from_json(Graph, graph),
        digest.text(_DIGEST),
        tuple(map(_read_use, uses.items())),
    )


def _read_use(value: Value) -> TemplateUse:
    arities, plan, executor, instance, layouts = value.fields("arities", "plan", "executor", "instance", "layouts")
    if plan.content not in {kind.value for kind in Plan if isinstance(plan.content, str)}:
        raise plan.error("a plan")
    return TemplateUse(
        arities.integers(),
        Plan(plan.text()),
        executor.text(),
        codec.from_json(Instance, instance),
        tuple(codec.from_json(ArgumentLayouts, each) for each in layouts.items()),
    )


def _read_option(value: Value) -> Option:
    if isinstance(value.content, list):
        return tuple(item.text() for item in value.items())
    if value.content is None or isinstance(value.content, bool):
        return value.content
    return value.text() if isinstance(value.content, str) else value.number()


def _items(value: Value) -> list[tuple[str, Value]]:
    if not isinstance(value.content, dict):
        raise value.error("an object")
    return [(name, Value(f"{value.name}.{name}", content)) for name, content in value.content.items()]


_READERS: Mapping[str, Callable[[Value], Reference]] = {
    "module": _read_module,
    "name": _read_name,
    "symbol": _read_symbol,
    "template": _read_template,
    "cuda graph": _read_cuda_graph,
    "group": _read_group,
    "agreement": _read_agreement,
}
