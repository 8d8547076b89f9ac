"""The key of a program: all that is known to take part before anything is traced.

What else a trace looks at, the functions it runs and the globals they name, is noted while it runs: the reads of a
program. Key and reads together have to be complete, so in doubt something is in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from inspect import CO_VARARGS
from itertools import chain, repeat
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer, escape_name, write_classes
from fusioncache.accelerators.programs.function_map import WriteThunder, write_function_map, write_thunder
from fusioncache.accelerators.programs.introspection import find_in_class
from fusioncache.accelerators.programs.kept_passes import FAMILY_FORMAT
from fusioncache.accelerators.programs.options import read_options
from fusioncache.accelerators.programs.process_groups import find_groups, read_groups
from fusioncache.accelerators.programs.state import read_state, read_variables_of_thunder
from fusioncache.accelerators.programs.tensors import write_layout
from fusioncache.accelerators.programs.versions import read_versions
from fusioncache.accelerators.sizes.arguments import Place, find_integers, find_tensors
from fusioncache.ir import Declined, Key, Scope
from fusioncache.ir.key_text import NamedValue, read_values, write_lines, write_values
from fusioncache.process.collector import without_collector
from fusioncache.store.entry import PROGRAM_FORMAT
from fusioncache.template.key import program_key_of

if TYPE_CHECKING:
    import torch

FORMAT = PROGRAM_FORMAT
"""Of what is written here, of a program's text and of its reads. Whoever changes one of these raises it."""


def program_key(
    definitions: Definitions,
    compile_data: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    write: WriteThunder = write_thunder,
) -> Key:
    """Returns the key of the program for these arguments.

    Args:
        definitions: names things. Its describer is a new one, and knows all that was described when this returns.
        compile_data: Thunder's ``CompileData`` of the function, whose ``transforms`` are set.
        args: as the function is called.
        kwargs: as the function is called.
        write: writes the function map, which may be known from an earlier key.

    Raises:
        Declined: if something takes part that cannot be compared.
    """
    # Names are made for ten thousand functions, and all but the key is gone when this returns.
    with without_collector():
        return _make_key(definitions, compile_data, args, kwargs, write)


def form_key(key: Key, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key:
    """Returns the form of a program: its key without the sizes of arguments, but with the dimensions of each.

    No program has this key.

    Args:
        key: of a program.
        args: as the function is called. Of a tensor it says in which order its dimensions lie in memory, of integers by
            themselves nothing but that they are above 1.
        kwargs: as the function is called.
    """
    tensors, integers = find_tensors(args, kwargs), find_integers(args, kwargs)
    values = read_values(key.texts["arguments"])
    # With the device behind it: where a tensor begins in its storage may come between.
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
    """Tells whether two keys, or two forms, differ in what a function is called with, and in nothing else."""
    names = one.texts.keys() | other.texts.keys()
    return {name for name in names if one.texts.get(name) != other.texts.get(name)} == {"arguments"}


def _write_order(tensor: torch.Tensor) -> str:
    """Returns what a form says of a tensor's layout: nothing that a length, or the place of a slice, changes.

    Thunder sees no strides. What is compiled for a region sees those of its own arguments when it is called.
    """
    if tensor.is_contiguous():
        return f"contiguous, {tensor.dim()} dimensions"
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension])
    repeated = [dimension for dimension in order if strides[dimension] == 0]
    return f"dimensions in the order {order}" + (f", repeated {repeated}" if repeated else "")


def _name_argument(place: Place) -> str:
    """Returns the name that an argument has in a key. What is in a container has the container's name."""
    first = place[0] if isinstance(place, tuple) else place
    return f"args.{first}" if isinstance(first, int) else f"kwargs.{escape_name(first)}"


def _make_key(
    definitions: Definitions,
    compile_data: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    write: WriteThunder,
) -> Key:
    describer = definitions.describer
    texts = {"program format": str(FORMAT)}
    for name, lines in {
        "model": write_lines(_read_model(describer, compile_data)),
        "arguments": write_lines(_read_arguments(describer, compile_data.fn, args, kwargs)),
        "state": write_lines(read_state(compile_data)),
        "jit options": write_lines(read_options(describer, definitions, compile_data)),
        "function map": write_function_map(definitions, compile_data.executors_list, write),
        "program versions": write_lines(read_versions()),
        "variables": write_lines(read_variables_of_thunder()),
        # Last, as all that was described before has met its classes.
        "classes": _write_classes(describer),
    }.items():
        try:
            texts[name] = "\n".join(lines)
        except Declined as reason:
            reason.require(Scope.VALUE, Scope.AMOUNT)
            raise Declined(f"{_SUBJECTS.get(name, name)}: {reason}", Scope.PROGRAM) from reason
    return program_key_of(texts)


_SUBJECTS = {
    "model": "the model",
    "arguments": "an argument",
    "jit options": "an option of thunder.jit",
    "function map": "Thunder's modules",
}


def _read_model(describer: Describer, compile_data: Any) -> Iterator[NamedValue]:
    """Yields the parts of what is traced, and what transforms have put in place of its parameters.

    Raises:
        Declined: if ranks share it in a way that is not known.
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
        # Those of a tied one come in the order of a set of texts, and nothing depends on it.
        for name, value in sorted(getattr(module, f"_overrides_{kind}").items()):
            if own.get(name) is not value:
                yield from describer.walk(f"{kind}.{name}", value)


def _read_arguments(
    describer: Describer, function: object, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[NamedValue]:
    """Yields what the function is called with: how many arguments there are, then what each holds, by its place.

    Thunder makes a program for each number and each text. Of tensors it is all but their numbers, and which of them,
    and of the model's parameters, share memory.

    Args:
        describer: has described the model, so that it knows its parameters.
        function: that is called.
        args: by position.
        kwargs: by name, in their order: a function may see it.

    Raises:
        Declined: if one has no value that could be compared, as an open file.
    """
    yield "args", " ".join((str(len(args)), *map(escape_name, kwargs)))
    for position, (value, name) in enumerate(zip(args, _list_parameters(function), strict=False)):
        yield from describer.walk(_name_argument(position), value, name)
    for name, value in kwargs.items():
        yield from describer.walk(_name_argument(name), value, name)


def _list_parameters(function: Any) -> Iterator[str | None]:
    """Yields the names by which a function takes what it is given by position, without end; None where it has none."""
    import torch

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


def _write_classes(describer: Describer) -> Iterator[str]:
    yield write_classes(describer.list_classes())
