"""The values in the text of a trace, as Thunder's proxies. Their types are what comments say, or follow from calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusioncache.accelerators.programs.references import TemplateReference, TemplateUse
from fusioncache.backends.bound_symbols import thunder_dtype
from fusioncache.ir import Graph, TensorType, ValueType
from fusioncache.ir.ops import RESIDUAL
from fusioncache.thunder_adapter.api import ComplexProxy, Device, FloatProxy, IntegerProxy, Proxy, TensorProxy, dtypes

_TYPED = re.compile(r'# (\w+): "(.*)"$', re.MULTILINE)
_TENSOR = re.compile(r"(\S+) (\w+)\[([\d, ]*)\]")
_NUMBER = re.compile(r"(bool|int|float|complex) (.*)")


class LoadedProxy(Proxy):
    """A value of which no more is known than what Thunder said of its type.

    Args:
        name: of the value.
        type_: in Thunder's words.
    """

    def __init__(self, name: str, type_: str):
        super().__init__(name)
        self._type = type_

    def type_string(self) -> str:
        """Returns the type in Thunder's words."""
        return self._type


def read_types(source: str) -> dict[str, str]:
    """Returns the types that comments of a trace's text give to names, in Thunder's words."""
    return dict(_TYPED.findall(source))


def make_proxy(name: str, type_: str | None) -> Any:
    """Returns a value of this name. The trace that is current must not have the name yet.

    Args:
        name: of the value.
        type_: in Thunder's words, such as ``cpu f32[2, 3]``; None if it is not known.
    """
    tensor, number = _TENSOR.fullmatch(type_ or ""), _NUMBER.fullmatch(type_ or "")
    if tensor and tensor[2] in (known := _dtypes()):
        shape = tuple(map(int, filter(None, tensor[3].split(", "))))
        return TensorProxy(name, shape=shape, device=Device(tensor[1]), dtype=known[tensor[2]])
    if number:
        kinds = {"bool": IntegerProxy, "int": IntegerProxy, "float": FloatProxy, "complex": ComplexProxy}
        return kinds[number[1]](name, _read_number(number[1], number[2]))
    return Proxy(name) if type_ is None else LoadedProxy(name, type_)


def _dtypes() -> Mapping[str, Any]:
    return {dtype.shortname(): dtype for dtype in dtypes.all_dtypes if not dtype.is_weak}


def _read_number(kind: str, text: str) -> Any:
    try:
        return text == "True" if kind == "bool" else {"int": int, "float": float, "complex": complex}[kind](text)
    except ValueError:  # a question mark: it is known when the trace runs
        return None


def type_outputs(reference: TemplateReference, args: Sequence[Any]) -> Iterator[str | None]:
    """Yields the types of what the call of a template returns, in Thunder's words; None where it is not known.

    Args:
        reference: the template.
        args: those of the call.
    """
    use = _find_use(reference, args)
    gpus = [arg.device.device_str() for arg in args if isinstance(arg, TensorProxy) and arg.device.type == "cuda"]
    types = _types_of(use.instance.region) if use else {}
    for output in use.instance.outputs if use else ():
        type_ = types.get(use.instance.region.outputs[output]) if use else None
        yield _write_type(type_, gpus) if isinstance(type_, TensorType) else None


def _find_use(reference: TemplateReference, args: Sequence[Any]) -> TemplateUse | None:
    chains = sum(op.name == RESIDUAL for op in reference.graph.ops)
    arities = (len(args) - len(reference.graph.inputs),) if chains == 1 else tuple(args[0]) if chains else ()
    return next((use for use in reference.uses if use.arities == arities), None)


def _types_of(region: Graph) -> dict[int, ValueType | None]:
    types: dict[int, ValueType | None] = dict(enumerate(region.inputs))
    for op, first in region.results():
        types.update(enumerate(op.outputs, first))
    return types


def _write_type(type_: TensorType, gpus: Sequence[str]) -> str | None:
    if not all(isinstance(size, int) for size in type_.shape):
        return None
    device = gpus[0] if type_.device == "cuda" and gpus else type_.device
    return f"{device} {thunder_dtype(type_.dtype).shortname()}{list(type_.shape)}"
