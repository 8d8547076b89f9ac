"""Regions drawn by hand, scrambled, and evaluated with numpy."""

import ast
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fusioncache.ir import Arg, Const, Graph, Op, Ref, TensorType, ValueType, operands
from fusioncache.ir.ops import CONVERT
from fusioncache.template.canonical import Canonical, canonicalize
from fusioncache.template.plan import fold, inline
from fusioncache.template.simplify import Commuting
from fusioncache.template.writer import rename_operands

ENVIRONMENT = {"backend": "nvfuser", "versions": "nvfuser 1\ntorch 2", "options": "enable ", "architecture": "sm_90"}
TYPE = TensorType("float32", (2, 3), "cpu")


class Sketch:
    """Builds a graph op by op. All inputs first, then ops, then ``graph``."""

    def __init__(self) -> None:
        self.types: list[ValueType] = []
        self.inputs = 0
        self.ops: list[Op] = []

    def input(self, type_: ValueType = TYPE) -> Ref:
        assert not self.ops
        self.types.append(type_)
        self.inputs += 1
        return Ref(self.inputs - 1)

    def op(self, name: str, *args: Any, type_: ValueType | None = None, **kwargs: Any) -> Ref:
        """Adds an op with one result, by default of the type of its first operand; returns the result."""
        encoded = tuple(map(encode_literal, args))
        if type_ is None:
            type_ = next((self.types[arg.index] for arg in encoded if isinstance(arg, Ref)), TYPE)
        options = tuple(sorted((key, encode_literal(value)) for key, value in kwargs.items()))
        self.ops.append(Op(f"prims.{name}", encoded, (type_,), options))
        self.types.append(type_)
        return Ref(len(self.types) - 1)

    def to(self, value: Ref, dtype: str) -> Ref:
        type_ = replace(self.types[value.index], dtype=dtype)
        return self.op("convert_element_type", value, Const("dtype", dtype), type_=type_)

    def graph(self, *outputs: Ref) -> Graph:
        return Graph(tuple(self.types[: self.inputs]), tuple(self.ops), tuple(output.index for output in outputs))


def encode_literal(value: Any) -> Arg:
    if isinstance(value, tuple):
        return tuple(map(encode_literal, value))
    if isinstance(value, Ref | Const):
        return value
    return Const(type(value).__name__, value.hex() if isinstance(value, float) else str(value))


def draw(*outputs: str, device: str = "cpu", **inputs: tuple[int, ...] | ValueType) -> Graph:
    """Returns a region of expressions such as ``mul(x, sin(y))``; inputs have the shape 2 x 3 unless given."""
    tree = ast.parse(f"[{', '.join(outputs)}]", mode="eval").body
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = sorted((node.col_offset, node.id) for node in ast.walk(tree) if isinstance(node, ast.Name))
    sketch, values = Sketch(), dict[str, Any](inf=float("inf"), nan=float("nan"))
    for name in dict.fromkeys([*inputs, *(name for _, name in found)]):
        given = inputs.get(name, (2, 3))
        if name not in called | values.keys():
            values[name] = sketch.input(TensorType("float32", given, device) if isinstance(given, tuple) else given)

    def read(node: ast.expr) -> Any:
        text = ast.unparse(node)
        if isinstance(node, ast.Call) and text not in values:
            name, args = node.func.id, [read(arg) for arg in node.args]
            options = {each.arg: read(each.value) for each in node.keywords}
            type_ = _type_of(name, args, options.get("dtype"), sketch.types, device)
            values[text] = sketch.op(name, *args, type_=type_, **options)
        elif isinstance(node, ast.Tuple):
            return tuple(map(read, node.elts))
        elif text not in values:
            literal = ast.literal_eval(node)
            is_device = literal in ("cpu", "cuda", "cuda:0")
            return Const("device" if is_device else "dtype", literal) if isinstance(literal, str) else literal
        return values[text]

    return sketch.graph(*map(read, tree.elts))


def _type_of(name: str, args: Sequence[Any], made: Const | None, types: Sequence[ValueType], device: str) -> ValueType:
    """Returns the result type of an operation on arguments of these types; ``made`` is the dtype of a new tensor."""
    tensors = [types[arg.index] for arg in args if isinstance(arg, Ref)]
    literals = [arg for arg in args if not isinstance(arg, Ref)]
    old = next((type_ for type_ in tensors if isinstance(type_, TensorType)), TYPE if not tensors else tensors[0])
    if not isinstance(old, TensorType):
        return old
    shape, dtype = old.shape, made.text if made else old.dtype
    match name, literals:
        case "where", _:
            dtype = next((type_.dtype for type_ in tensors[1:]), "float32")
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge", _:
            dtype = "bool8"
        case "convert_element_type", [new]:
            dtype = new.text
        case "broadcast_in_dim" | "reshape" | "full", [new, *_]:
            shape = new
        case "iota", [length, *_]:
            shape = (length,)
        case "matmul", _:
            shape = (*shape[:-1], tensors[1].shape[-1])
        case "linear", _:
            shape = (*shape[:-1], tensors[1].shape[0])
        case "transpose", [order]:
            shape = tuple(shape[dimension] for dimension in order)
        case "sum" | "amax", [dimensions, *_]:
            shape = tuple(size for dimension, size in enumerate(shape) if dimension not in dimensions)
        case "slice_prim", [starts, ends, *strides]:
            steps = strides[0] if strides else (1,) * len(starts)
            shape = tuple(-((start - end) // step) for start, end, step in zip(starts, ends, steps, strict=True))
        case "pad", [_, config]:
            wide = zip(shape, config, strict=False)
            shape = tuple(low + size + (size - 1) * between + high for size, (low, high, between) in wide)
    return TensorType(dtype, shape, old.device if tensors else device)


def draw_residual(adds: int, *, dtype: str = "float32", swap: bool = False) -> Graph:
    """Returns ``tanh(((x + a1) + a2) + ...)`` with inputs in ``dtype`` and sums in float32."""
    sketch = Sketch()
    terms = [sketch.input(TensorType(dtype, (2, 3), "cpu")) for _ in range(adds + 1)]
    if dtype != "float32":
        terms = [sketch.to(term, "float32") for term in terms]
    total = terms[0]
    for term in terms[1:]:
        total = sketch.op("add", *((term, total) if swap else (total, term)))
    return sketch.graph(sketch.op("tanh", total))


def make_template(name="sin", *, type_=TYPE, constant=2.0, dims=(0,), both=False) -> Graph:
    """Returns ``sum(2 * sin(x))`` in canonical form; with ``both`` the summed value is an output too."""
    s = Sketch()
    value = s.op("mul", s.op(name, s.input(type_)), constant)
    total = s.op("sum", value, dims)
    return canonicalize(s.graph(total, value) if both else s.graph(total)).graph


def scramble(graph: Graph, chance: random.Random) -> Graph:
    """Returns an equivalent graph: inputs, outputs and independent ops reordered, operands commuted, dead ops added."""
    inputs = chance.sample(range(len(graph.inputs)), len(graph.inputs))
    number = {old: new for new, old in enumerate(inputs)}
    ops: list[Op] = []
    commuting = Commuting(len(inputs))
    waiting = [(op, first) for op, first in graph.results()]
    made = len(inputs)
    while waiting:
        ready = [item for item in waiting if all(index in number for _, index in operands(item[0]))]
        op, first = item = chance.choice(ready)
        waiting.remove(item)
        new = rename_operands(op, lambda index: Ref(number[index]))
        if commuting.commutes(new) and chance.random() < 0.5:
            new = Op(new.name, new.args[::-1], new.outputs, new.kwargs)
        copies = [new] * chance.choice([1, 1, 1, 2])  # a duplicate: uses of the value all go to the last one
        for copy in copies:
            ops.append(copy)
            commuting.define(copy)
        made += len(copies) * len(op.outputs)
        number.update({first + place: made - len(op.outputs) + place for place in range(len(op.outputs))})
    outputs = [number[value] for value in graph.outputs]
    chance.shuffle(outputs)
    return Graph(tuple(graph.inputs[old] for old in inputs), tuple(ops), tuple(outputs))


def _broadcast(value: np.ndarray, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> np.ndarray:
    new = tuple(set(range(len(shape))) - set(dimensions))
    return np.broadcast_to(np.expand_dims(value, new), shape)


_NUMPY = {
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "shallow_copy": lambda value: value,
    "broadcast_in_dim": _broadcast,
    "iota": lambda length: np.arange(length, dtype=np.float32),
    "pad": lambda value, filled, config: np.pad(value, [pair[:2] for pair in config], constant_values=filled),
    "slice_prim": lambda value, starts, ends: value[tuple(map(slice, starts, ends))],
}
"""Operations that numpy has under another name, or with other arguments."""


def evaluate(graph: Graph, inputs: Sequence[Any]) -> list[np.ndarray]:
    """Returns the outputs of a graph without parameters, computed op by op; asserts the shape of each value."""
    values: list[Any] = list(inputs)
    sizes = {
        size.index: actual
        for type_, value in zip(graph.inputs, inputs, strict=True)
        if isinstance(type_, TensorType)
        for size, actual in zip(type_.shape, value.shape, strict=True)
        if isinstance(size, Ref)
    }
    values += [sizes[number] for number in range(len(inputs), graph.first_result)]
    for op in graph.ops:
        operands_ = [_literal(arg, values) for arg in op.args]
        if op.name == CONVERT:
            values.append(operands_[0].astype(op.args[1].text))
        else:
            with np.errstate(all="ignore"):
                name = op.name.removeprefix("prims.")
                values.append((_NUMPY.get(name) or getattr(np, name))(*operands_))
        assert values[-1].shape == _literal(op.outputs[0].shape, values)
    return [values[value] for value in graph.outputs]


def _literal(arg: Any, values: Sequence[Any]) -> Any:
    if isinstance(arg, tuple):
        return tuple(_literal(item, values) for item in arg)
    if isinstance(arg, Ref):
        return values[arg.index]
    if isinstance(arg, Const) and arg.kind in ("int", "float"):
        return np.float32(float.fromhex(arg.text)) if arg.kind == "float" else int(arg.text)
    return arg


def evaluate_inlined(canonical: Canonical, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs of a region, computed by its template with all adds written out."""
    binding = canonical.binding
    graph = inline(canonical.graph, binding.arities)
    results = evaluate(graph, [inputs[position] for position in binding.arguments])
    return [results[slot] for slot in binding.outputs]


def evaluate_folded(canonical: Canonical, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the outputs of a region, computed by folds and the template's core."""
    binding = canonical.binding
    args = [inputs[position] for position in binding.arguments]
    folded = fold(canonical.graph, binding.arities)
    sums = []
    for chain in folded.chains:
        total = args[chain.head]
        for step in chain.folds:
            (total,) = evaluate(step.graph, [total, *args[step.terms.start : step.terms.stop]])
        sums.append(total)
    values = [*args[: len(binding.slots)], *sums]
    core = folded.core
    computed = evaluate(core.graph, [values[place] for place in core.arguments]) if core.graph else []
    leaving = [*computed, *sums]
    return [leaving[core.results[slot]] for slot in binding.outputs]
