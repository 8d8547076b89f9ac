"""Reads the texts of a key back into the graph that they were written from: the inverse of ``template/text.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from fusioncache.ir import Arg, Const, Graph, NumberType, Op, Ref, TensorType, ValueType
from fusioncache.template.key import make_key

_OP = re.compile(r"(?P<results>.*?) ?= (?P<name>[^\s(]+)\((?P<args>.*)\)")
_RESULT = re.compile(r"%\d+: (.+?)(?:, (?=%\d+: )|$)")
_TENSOR = re.compile(r"(\S+?)\[(.*)\] (\S*)")
_TOKEN = re.compile(r"\s*(?:(?P<kwarg>\w+)=|(?P<leaf>%\d+|constant\d+|attribute\d+)|(?P<mark>[(),]))")


def read_graph(parts: Mapping[str, str]) -> Graph:
    """The canonical graph of a key with these ingredients.

    Raises:
        ValueError: if they cannot be read, as those of another format may not.
    """
    try:
        return _graph(parts)
    except (KeyError, IndexError, SyntaxError) as error:
        raise ValueError("ingredients that cannot be read") from error


def read_exactly(parts: Mapping[str, str]) -> Graph:
    """The same, but only if the graph is written again as it was: one that means something else is worse than none.

    Raises:
        ValueError: as above, or because this version writes it otherwise.
    """
    graph = read_graph(parts)
    if any(parts.get(part.name) != part.text for part in make_key(graph, {}).ingredients):
        raise ValueError("this version would write it otherwise")
    return graph


def _graph(parts: Mapping[str, str]) -> Graph:
    declared = _lines(parts["inputs"])
    inputs = tuple(_type(line.partition(": ")[2]) for line in declared if line.startswith("input "))
    literals = _literals(parts)
    ops = tuple(_op(line, literals) for line in _lines(parts["ops"]))
    outputs = tuple(int(line.removeprefix("output %")) for line in _lines(parts["outputs"]))
    if None in inputs:
        raise ValueError("an input without a type")
    graph = Graph(inputs, ops, outputs, len(declared) - len(inputs))  # type: ignore[arg-type]  # see above
    _check(graph)
    return graph


def _check(graph: Graph) -> None:
    defined = graph.first_result + sum(len(op.outputs) for op in graph.ops)
    if not all(0 <= value < defined for value in graph.outputs):
        raise ValueError("an output that is no value")


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def _literals(parts: Mapping[str, str]) -> dict[str, Const]:
    literals = {}
    for number, line in enumerate(_lines(parts["constants"])):
        kind, _, text = line.partition(" ")
        literals[f"constant{number}"] = Const(kind, text)
    for number, line in enumerate(_lines(parts["attributes"])):
        kind, _, text = line.partition(" ")
        literals[f"attribute{number}"] = Const(kind, ast.literal_eval(text))
    return literals


def _type(text: str) -> ValueType | None:
    if text == "_":
        return None
    tensor = _TENSOR.fullmatch(text)
    if tensor is None:
        return NumberType(text)
    sizes = tensor[2].split(", ") if tensor[2] else []
    shape = tuple(Ref(int(size[1:])) if size.startswith("%") else int(size) for size in sizes)
    return TensorType(tensor[1], shape, tensor[3])


def _op(line: str, literals: Mapping[str, Const]) -> Op:
    found = _OP.fullmatch(line)
    if found is None:
        raise ValueError("no op")
    results = tuple(_type(result) for result in _RESULT.findall(found["results"]))
    args, kwargs = _Args(found["args"], literals).read()
    return Op(found["name"], args, results, kwargs)


class _Args:
    """The arguments of one op, token by token."""

    def __init__(self, text: str, literals: Mapping[str, Const]):
        tokens = list(_TOKEN.finditer(text))
        if "".join(token[0] for token in tokens) != text:
            raise ValueError("no arguments")
        self._tokens = tokens
        self._place = 0
        self._literals = literals

    def read(self) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
        args: list[Arg] = []
        kwargs: list[tuple[str, Arg]] = []
        while self._place < len(self._tokens):
            name = self._tokens[self._place]["kwarg"]
            if name:
                self._place += 1
                kwargs.append((name, self._arg()))
            else:
                args.append(self._arg())
            self._place += 1  # the comma
        return tuple(args), tuple(kwargs)

    def _arg(self) -> Arg:
        token = self._tokens[self._place]
        self._place += 1
        if token["mark"] == "(":
            return self._tuple()
        leaf = token["leaf"]
        if leaf is None:
            raise ValueError("no argument")
        return Ref(int(leaf[1:])) if leaf.startswith("%") else self._literals[leaf]

    def _tuple(self) -> tuple[Arg, ...]:
        items: list[Arg] = []
        while self._tokens[self._place]["mark"] != ")":
            if self._tokens[self._place]["mark"] == ",":
                self._place += 1
            else:
                items.append(self._arg())
        self._place += 1
        return tuple(items)
