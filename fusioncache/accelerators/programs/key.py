"""The key of a program: everything that the program depends on and that can be determined before tracing.

The other dependencies, the functions that run while Thunder traces and the globals they use, are recorded during
tracing: the reads of a program. Key and reads together must be complete, so a doubtful dependency is in both.

The ingredient ``state`` is the process-wide state of torch and Thunder. The ingredient ``variables`` is the environment
variables that change what Thunder traces. Environment variables that a model's code reads are reads of its program. A
mode that intercepts every call of torch, such as a ``TorchDispatchMode``, cannot be described. So no program is stored
under one. Random number state, the number of threads and the like do not affect a trace.

The ingredient ``program versions`` identifies the code that derives a program. Developers change Thunder or this
package without a new version number, so it includes the digest of the sources of both. Torch is identified by the
commit it was built from; torch functions that are interpreted during tracing are reads of the program.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import CO_VARARGS
from itertools import chain, groupby, repeat
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils import _device

from fusioncache.accelerators.programs.containers import write_layout
from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer, escape_name
from fusioncache.accelerators.programs.function_map import KeyCache
from fusioncache.accelerators.programs.introspection import find_in_class
from fusioncache.accelerators.programs.options import find_groups, read_groups, read_options
from fusioncache.accelerators.sizes.journal import FAMILY_FORMAT
from fusioncache.accelerators.sizes.values import Place, find_integers, find_tensors
from fusioncache.backends.torch_settings import read_torch_settings, read_variables
from fusioncache.backends.versions import read_versions
from fusioncache.ir import Declined, Key, Scope
from fusioncache.ir.keys import NamedValue, read_values, write_lines, write_values
from fusioncache.process.collector import without_collector
from fusioncache.process.secrets import find_kind, write_text
from fusioncache.store.entry import PROGRAM_FORMAT
from fusioncache.template.key import program_key_of

_AUTOCAST_DEVICES = ("cpu", "cuda")
_PREFIXES = ("THUNDER_", "NVFUSER_", "PYTORCH_NVFUSER_")
"""Prefixes of the environment variables that Thunder and nvFuser read while a program is derived."""


def read_state(compile_data: Any) -> Iterator[NamedValue]:
    """Yields the state of torch, then that of Thunder.

    Args:
        compile_data: Thunder's ``CompileData`` of the function that is called.

    Raises:
        Declined: under a mode, or within another trace.
    """
    _refuse_modes()
    yield "grad", torch.is_grad_enabled()
    yield "inference_mode", torch.is_inference_mode_enabled()
    yield "anomaly_mode", torch.is_anomaly_enabled()
    yield "torch_function", torch._C._is_torch_function_enabled()
    yield from _read_autocast()
    # read_torch_settings() contains only the type of the default device, without its index.
    yield "default_device", torch.get_default_device()
    yield from read_torch_settings().items()
    yield "int_max_str_digits", sys.get_int_max_str_digits()
    yield "compiling", (torch.compiler.is_compiling(), torch.compiler.is_exporting())
    yield from _read_devices()
    yield from _read_thunder(compile_data)


def _refuse_modes() -> None:
    functions = [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]
    foreign = [mode for mode in functions if type(mode) is not _device.DeviceContext]
    if foreign or torch._C._len_torch_dispatch_stack():
        name = type(foreign[-1]).__qualname__ if foreign else "a TorchDispatchMode"
        raise Declined(f"a torch mode is active: {name}", Scope.PROGRAM)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Declined("it is called inside a torch.func transform", Scope.PROGRAM)
    if torch._C._get_tracing_state() is not None:
        raise Declined("torch.jit is tracing", Scope.PROGRAM)


def _read_autocast() -> Iterator[NamedValue]:
    for device in _AUTOCAST_DEVICES:
        yield f"autocast.{device}", torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    yield "autocast.cache", torch.is_autocast_cache_enabled()


def _read_devices() -> Iterator[NamedValue]:
    """Yields the GPU properties that Thunder's executors check before they claim an operation."""
    if not torch.cuda.is_initialized():
        return
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    # By kind without counts, so that machines with more GPUs of a kind share programs.
    kinds = sorted({f"{device.name} {device.major}.{device.minor}" for device in devices})
    yield "cuda.devices", ", ".join(kinds)
    yield "cuda.current_device", torch.cuda.current_device()
    yield "cudnn", torch.backends.cudnn.version()


def _read_thunder(compile_data: Any) -> Iterator[NamedValue]:
    from fusioncache.thunder_adapter.accelerator_api import get_langctx, trace
    from fusioncache.thunder_adapter.api import get_skip_data_parallel_grad_sync

    if trace._execution_file.get() is not None:
        raise Declined("Thunder reads its traces from a file that it wrote for editing", Scope.PROGRAM)
    yield "thunder.language", get_langctx().name
    yield "thunder.grad", compile_data.is_grad_enabled
    yield "thunder.autocast", _write_autocast_stack(compile_data.autocast_stack.stack)
    yield "thunder.no_grad_sync", get_skip_data_parallel_grad_sync()


def _write_autocast_stack(stack: Iterable[Any]) -> str:
    """Returns Thunder's autocast stack as text, with equal neighbors written once.

    Each call under autocast pushes one more equal item, and only the top is used. A model leaves every autocast that it
    enters.
    """
    return " ".join(f"{device}:{dtype}:{enabled}" for (device, dtype, enabled), _ in groupby(stack))


def read_variables_of_thunder() -> Iterator[NamedValue]:
    """Yields the name of each variable that is set, and its value as a text that may be stored."""
    for name, value in read_variables(_PREFIXES, (), ()):
        now = os.environ.get(name, "")
        # Of a variable that was changed, read_variables() returns both values.
        yield name, write_text(now if value == repr(now) else str(value), find_kind(name))


FORMAT = PROGRAM_FORMAT
"""Version of the formats of a program's key, text and reads. A change of one of these increments it."""


def make_key(
    compile_data: Any, args: Sequence[Any], kwargs: Mapping[str, Any], key_cache: KeyCache
) -> tuple[Key, Definitions]:
    """Returns the key of the program for these arguments, and the ``Definitions`` that named its values.

    Args:
        compile_data: Thunder's ``CompileData`` of the function, whose ``transforms`` are set.
        args: as the function is called.
        kwargs: as the function is called.
        key_cache: the cached names and function maps of this process.

    Raises:
        Declined: if the program depends on something that cannot be compared.
    """
    # The first call names ten thousand functions. All but these names and the key is freed when this returns.
    with without_collector():
        known_map, describer = key_cache.find_map(compile_data.executors_list), key_cache.make_describer()
        definitions = Definitions(describer, known_map.names, known_map.met)
        parts = {
            "model": write_lines(_read_model(describer, compile_data)),
            "arguments": write_lines(_read_arguments(describer, compile_data.fn, args, kwargs)),
            **read_process(compile_data),
            "jit options": write_lines(read_options(describer, definitions, compile_data)),
            "function map": (known_map.text,),
            # Last: the descriptions above collect the classes.
            "classes": write_lines(describer.list_classes()),
        }
        return program_key_of({"program format": str(FORMAT), **write_parts(parts)}), definitions


def form_key(key: Key, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key:
    """Returns the form of a program: its key without the sizes of arguments, but with the number of dimensions of each.

    No program has this key. The form of a tensor has the memory order of its dimensions. Of an integer above 1, unless
    it is in a container, the form only says that.

    Args:
        key: of a program.
        args: as the function is called.
        kwargs: as the function is called.
    """
    tensors, integers = find_tensors(args, kwargs), find_integers(args, kwargs)
    values = read_values(key.texts["arguments"])
    # With the device: else a layout without an offset would match the start of one with an offset.
    found = Counter((_name_argument(place), f" {write_layout(each)} {each.device}") for place, each in tensors.items())
    for place, tensor in tensors.items():
        name, layout = _name_argument(place), f" {write_layout(tensor)} {tensor.device}"
        text = values.get(name, "")
        if text.count(layout) == found[name, layout]:
            found[name, layout] -= 1
            values[name] = text.replace(layout, f" {_write_order(tensor)} {tensor.device}", 1)
    for place, integer in integers.items():
        if values.get(_name_argument(place)) == str(integer):
            values[_name_argument(place)] = "an integer above 1"
    arguments = write_values(values.items())
    return program_key_of({**key.texts, "arguments": arguments, "family format": str(FAMILY_FORMAT)})


def differ_in_arguments(one: Key, other: Key) -> bool:
    """True if two keys, or two forms, differ in the arguments and in nothing else."""
    names = one.texts.keys() | other.texts.keys()
    return {name for name in names if one.texts.get(name) != other.texts.get(name)} == {"arguments"}


def _write_order(tensor: torch.Tensor) -> str:
    """Returns the part of a tensor's layout that a form contains: independent of lengths and of a slice's offset.

    Thunder does not read strides. The code compiled for a region reads those of its arguments when it is called.
    """
    if tensor.is_contiguous():
        return f"contiguous, {tensor.dim()} dimensions"
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension])
    repeated = [dimension for dimension in order if strides[dimension] == 0]
    return f"dimensions in the order {order}" + (f", repeated {repeated}" if repeated else "")


def _name_argument(place: Place) -> str:
    """Returns the name of an argument in a key. A value in a container has the container's name."""
    first = place[0] if isinstance(place, tuple) else place
    return f"args.{first}" if isinstance(first, int) else f"kwargs.{escape_name(first)}"


def read_process(compile_data: Any) -> dict[str, Iterable[str]]:
    """Returns the lines of the ingredients that describe the process, not one program, by ingredient name."""
    return {
        "state": write_lines(read_state(compile_data)),
        "program versions": write_lines(read_versions()),
        "variables": write_lines(read_variables_of_thunder()),
    }


def write_parts(parts: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Returns the texts of ingredients.

    Raises:
        Declined: if one contains something that cannot be compared.
    """
    texts = {}
    for name, lines in parts.items():
        try:
            texts[name] = "\n".join(lines)
        except Declined as reason:
            reason.require(Scope.VALUE, Scope.AMOUNT)
            raise Declined(f"{_SUBJECTS.get(name, name)}: {reason}", Scope.PROGRAM) from reason
    return texts


_SUBJECTS = {
    "model": "the model",
    "arguments": "an argument",
    "jit options": "an option of thunder.jit",
}


def _read_model(describer: Describer, compile_data: Any) -> Iterator[NamedValue]:
    """Yields the parts of the traced function or module, and the parameters and buffers that transforms replaced.

    Raises:
        Declined: if the model is distributed over ranks in an unknown way.
    """
    fn = compile_data.fn
    if not find_groups(compile_data) and (getattr(fn, "use_ddp", False) or getattr(fn, "use_fsdp", False)):
        raise Declined("the model is distributed over processes in an unknown way", Scope.PROGRAM)
    yield from read_groups(compile_data)
    yield from describer.walk("model", fn)
    module = compile_data._thunder_module_map.get(id(fn))
    if module is None or module._model is not fn:
        return
    own = {**dict(fn.named_parameters(remove_duplicate=False)), **dict(fn.named_buffers(remove_duplicate=False))}
    for kind in ("parameters", "buffers"):
        # The names of a tied parameter come in the order of a set of strings, and nothing depends on that order.
        for name, value in sorted(getattr(module, f"_overrides_{kind}").items()):
            if own.get(name) is not value:
                yield from describer.walk(f"{kind}.{name}", value)


def _read_arguments(
    describer: Describer, function: object, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[NamedValue]:
    """Yields the arguments of a call: their number and names, then the parts of each, by its place.

    Thunder makes a program for each value of a number or a string. Tensors are described by all but their elements,
    with aliasing among them and the model's parameters.

    Args:
        describer: has described the model, so that it recognizes its parameters.
        function: that is called.
        args: by position.
        kwargs: by name, in their order: a function may depend on it.

    Raises:
        Declined: if one has no value that could be compared, such as an open file.
    """
    yield "args", " ".join((str(len(args)), *map(escape_name, kwargs)))
    for position, (value, name) in enumerate(zip(args, _list_parameters(function), strict=False)):
        yield from describer.walk(_name_argument(position), value, name)
    for name, value in kwargs.items():
        yield from describer.walk(_name_argument(name), value, name)


def _list_parameters(function: Any) -> Iterator[str | None]:
    """Yields the parameter names of a function's positional arguments, without end; None where there is no name."""
    first = 0
    if isinstance(function, torch.nn.Module):
        own = vars(function).get("forward")
        first, function = (0, own) if own is not None else (1, find_in_class(type(function), "forward"))
    if type(function) is MethodType:
        first, function = 1, function.__func__
    if type(function) is not FunctionType:
        return repeat(None)
    code = function.__code__
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & CO_VARARGS else None
    return chain(code.co_varnames[first : code.co_argcount], repeat(rest))
