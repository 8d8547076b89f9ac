"""Graphs as text: written for people and for keys, and parsed from a key's text.

The text is hashed. Raise ``FORMAT`` with every change to what a text contains or omits.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache

from fusioncache.ir import Arg, Const, Graph, NumberType, Op, Ref, TensorType, ValueType

FORMAT = "1"
"""The version of the canonical text."""

NUMBERS = ("int", "float", "bool", "complex")
"""The kinds of literals that are constants where they take part in the arithmetic."""

_INPUT, _SIZE, _OUTPUT = "input ", "size ", "output %"
_OP = re.compile(r"(?P<results>.*?) ?= (?P<name>[^\s(]+)\((?P<args>.*)\)")
_OP_NAME = re.compile(r" = ([^\s(]+)\(")
_RESULT = re.compile(r"%\d+: (.+?)(?:, (?=%\d+: )|$)")
_TENSOR = re.compile(r"(\S+?)\[(.*)\] (\S*)")
_VALUE = re.compile(r"%(?=\d)")
_REFERENCE = re.compile(r"%\d+|(?:constant|attribute)\d+")


WriteLiteral = Callable[[Const, bool], str]
"""Writes a literal. The flag is True for a number that takes part in the arithmetic. All other literals are attributes:
dimensions, dtypes, shapes, devices, flags."""


def _write_inline(const: Const, _: bool) -> str:
    return str(const)


def graph_text(graph: Graph) -> str:
    """Returns the whole graph, a line for each input, op and output. Two graphs are equal when their texts are."""
    return "\n".join([*input_lines(graph), *op_lines(graph), *output_lines(graph)]) + "\n"


def type_text(type_: ValueType | None, *, anonymous: bool = False) -> str:
    """Returns a type as text; with ``anonymous``, symbolic sizes are without their numbers."""
    if type_ is None:
        return "_"
    if not anonymous or not isinstance(type_, TensorType):
        return str(type_)
    return str(
        TensorType(type_.dtype, tuple(-1 if isinstance(size, Ref) else size for size in type_.shape), type_.device)
    )


def input_lines(graph: Graph) -> list[str]:
    """Returns a line for each input and each symbolic size."""
    lines = [f"{_INPUT}%{number}: {type_}" for number, type_ in enumerate(graph.inputs)]
    return lines + [f"{_SIZE}%{number}" for number in range(len(graph.inputs), graph.first_result)]


def output_lines(graph: Graph) -> list[str]:
    """Returns a line for each output."""
    return [f"{_OUTPUT}{value}" for value in graph.outputs]


def op_lines(graph: Graph, write: WriteLiteral = _write_inline) -> list[str]:
    """Returns a line for each op. ``write`` writes its literals."""
    return [op_line(op, first, write) for op, first in graph.results()]


def op_line(op: Op, first: int, write: WriteLiteral = _write_inline) -> str:
    """Returns one op: its results, numbered from ``first``, with their types, its name and its arguments."""
    results = ", ".join(f"%{first + index}: {type_text(type_)}" for index, type_ in enumerate(op.outputs))
    args = [_arg_text(arg, write, positional=True) for arg in op.args]
    args += [f"{name}={_arg_text(arg, write)}" for name, arg in op.kwargs]
    return f"{results} = {op.name}({', '.join(args)})"


def _arg_text(arg: Arg, write: WriteLiteral, *, positional: bool = False) -> str:
    if isinstance(arg, Ref):
        return f"%{arg.index}"
    if isinstance(arg, tuple):
        items = ", ".join(_arg_text(item, write) for item in arg)
        return f"({items}{',' if len(arg) == 1 else ''})"
    return write(arg, positional and arg.kind in NUMBERS)


@lru_cache(maxsize=256)  # requested for several keys of one call; each takes as long as seven hashes of the graph
def write_graph(graph: Graph) -> Mapping[str, str]:
    """Returns the ingredients of a key that define what a graph computes, by name: ``GRAPH`` in ``ir/keys.py``."""
    constants: list[str] = []
    attributes: list[str] = []

    def write_reference(const: Const, is_number: bool) -> str:
        if is_number:
            constants.append(f"{const.kind} {const.text}")
            return f"constant{len(constants) - 1}"
        attributes.append(f"{const.kind} {const.text!r}")
        return f"attribute{len(attributes) - 1}"

    ops = "\n".join(op_lines(graph, write_reference))
    return {
        "format": FORMAT,
        "inputs": "\n".join(input_lines(graph)),
        "ops": ops,
        "constants": "\n".join(constants),
        "attributes": "\n".join(attributes),
        "outputs": "\n".join(output_lines(graph)),
    }


def read_graph(texts: Mapping[str, str]) -> Graph:
    """Returns the canonical graph of a key with these ingredients.

    Raises:
        ValueError: if they cannot be read, for example because of another format.
    """
    try:
        return _read_graph(texts)
    except (KeyError, IndexError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("ingredients that cannot be read") from error


def read_exactly(texts: Mapping[str, str]) -> Graph:
    """Does the same as ``read_graph``, but checks that the graph is written again as the same texts.

    No graph is better than a wrong one.

    Raises:
        ValueError: if they cannot be read, or if this version writes other texts.
    """
    graph = read_graph(texts)
    if any(texts.get(name) != text for name, text in write_graph(graph).items()):
        raise ValueError("this version would write it otherwise")
    return graph


def read_inputs(text: str) -> tuple[ValueType, ...]:
    """Returns the types of the inputs from the ingredient ``inputs``.

    Raises:
        ValueError: if an input has no type.
    """
    types = [_read_type(line.partition(": ")[2]) for line in _lines(text) if line.startswith(_INPUT)]
    known = tuple(type_ for type_ in types if type_ is not None)
    if len(known) < len(types):
        raise ValueError("an input without a type")
    return known


def count_ops(text: str) -> Counter[str]:
    """Returns how often each operation occurs in the ingredient ``ops``, without parsing the rest of it."""
    return Counter(_OP_NAME.findall(text))


def digest_ops(text: str) -> str:
    """Returns a digest of how often each operation occurs in the ingredient ``ops``. It is the same at all lengths."""
    return hashlib.sha256(json.dumps(sorted(count_ops(text).items())).encode()).hexdigest()


def hide_numbers(line: str) -> str:
    """Returns a line without the numbers of values and literals, because these depend on all other lines."""
    return _REFERENCE.sub("%", line)


def _read_graph(texts: Mapping[str, str]) -> Graph:
    inputs, declared = read_inputs(texts["inputs"]), _lines(texts["inputs"])
    literals = _read_literals(texts)
    ops = tuple(_read_op(line, literals) for line in _lines(texts["ops"]))
    outputs = tuple(int(line.removeprefix(_OUTPUT)) for line in _lines(texts["outputs"]))
    graph = Graph(inputs, ops, outputs, len(declared) - len(inputs))
    defined = graph.first_result + sum(len(op.outputs) for op in graph.ops)
    if not all(0 <= value < defined for value in graph.outputs):
        raise ValueError("an output that is no value")
    return graph


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def _read_literals(texts: Mapping[str, str]) -> dict[str, Const]:
    literals = {}
    for number, line in enumerate(_lines(texts["constants"])):
        kind, _, text = line.partition(" ")
        literals[f"constant{number}"] = Const(kind, text)
    for number, line in enumerate(_lines(texts["attributes"])):
        kind, _, text = line.partition(" ")
        literals[f"attribute{number}"] = Const(kind, ast.literal_eval(text))
    return literals


def _read_type(text: str) -> ValueType | None:
    if text == "_":
        return None
    tensor = _TENSOR.fullmatch(text)
    if tensor is None:
        return NumberType(text)
    sizes = tensor[2].split(", ") if tensor[2] else []
    shape = tuple(Ref(int(size[1:])) if size.startswith("%") else int(size) for size in sizes)
    return TensorType(tensor[1], shape, tensor[3])


def _read_op(line: str, literals: Mapping[str, Const]) -> Op:
    found = _OP.fullmatch(line)
    if found is None:
        raise ValueError("no op")
    results = tuple(_read_type(result) for result in _RESULT.findall(found["results"]))
    args, kwargs = _read_arguments(found["args"], literals)
    return Op(found["name"], args, results, kwargs)


def _read_arguments(text: str, literals: Mapping[str, Const]) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
    """Returns the arguments of one op. With ``value`` in place of each ``%`` they are parsed as a Python call."""
    call = ast.parse(f"call({_VALUE.sub('value', text)})", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("no arguments")

    def read_argument(node: ast.expr) -> Arg:
        if isinstance(node, ast.Tuple):
            return tuple(map(read_argument, node.elts))
        if not isinstance(node, ast.Name):
            raise ValueError("no argument")
        return Ref(int(node.id[5:])) if node.id.startswith("value") else literals[node.id]

    kwargs = tuple((keyword.arg or "", read_argument(keyword.value)) for keyword in call.keywords)
    return tuple(map(read_argument, call.args)), kwargs
