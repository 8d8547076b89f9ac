"""Scalar numbers as tensors of one element, so that code is correct for all their values.

A number that varies, among the inputs of a region or from one region to the next, must not be a Python number for
TorchInductor: it would become a constant, or silently keep its first value (pytorch#194976). As a tensor without
dimensions it gives the same bits where the other operand of a sum, a difference, a product or a quotient is a tensor
with dimensions: it does not change the result's dtype, and is converted as a number is. If the result has no dimensions
either, the tensor would change the dtype, so it has the dtype of the result. All other uses are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.api import GeneralFunction, Run
from fusioncache.backends.bound_symbols import FunctionSource, general_torch_source, read_numbers, torch_source
from fusioncache.ir import Declined, GeneralRegion, Graph, NumberType, Op, Scope, TensorType, Value
from fusioncache.ir.graph import argument_refs
from fusioncache.ir.ops import op_traits

_DOUBLE = "float64"
_FLOATING = ("float16", "bfloat16", "float32", _DOUBLE)
_OWN_TYPE = ("float32", _DOUBLE)
"""The dtypes of tensors that may replace a number where the result has no dimensions: a number is rounded to them
anyway."""


@dataclass(frozen=True, slots=True)
class TensorRegion:
    """A general region that takes tensors in place of the numbers of its arithmetic.

    Its arguments are those of the region, followed by a tensor for each variable that is such a number. Its variables
    are the remaining ones, which are integers.

    Attributes:
        general: the region.
        inputs: the indices of number inputs, with the dtype of the tensor that replaces each.
        numbers: the indices of variables that are numbers, with the dtype of the tensor that replaces each.
    """

    general: GeneralRegion
    inputs: Mapping[int, str]
    numbers: Mapping[int, str]

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the arguments."""
        own = self.general.graph.inputs[: len(self.general.regions[0].inputs)]
        carried = [_type_of(self.inputs[index]) if index in self.inputs else type_ for index, type_ in enumerate(own)]
        return (*carried, *map(_type_of, self.numbers.values()))  # type: ignore[arg-type]

    @property
    def places(self) -> tuple[tuple[int, int] | None, ...]:
        """For each variable, its argument and its dimension there; None if it is not a size of an argument."""
        return self.without_numbers(self.general.places)

    def without_numbers[T](self, of_variables: Sequence[T]) -> tuple[T, ...]:
        """Returns the items of the remaining variables, given one item for each variable of the original region."""
        return tuple(one for index, one in enumerate(of_variables) if index not in self.numbers)

    def carry(self, args: Sequence[Any], values: Sequence[Value]) -> list[Any]:
        """Returns the arguments, given those of the original region and the values of its variables."""
        numbers = read_numbers([values[index] for index in self.numbers])
        dtypes = [*map(self.inputs.get, range(len(args))), *self.numbers.values()]
        return [
            value if dtype is None else _make_tensor(value, dtype)
            for value, dtype in zip([*args, *numbers], dtypes, strict=True)
        ]

    def source(self, gpu: int) -> FunctionSource:
        """Returns the source of a function that takes the arguments and, behind them, the variables.

        Raises:
            Declined: if Thunder runs regions of other sizes by other operations.
        """
        if not self.general.places:
            return torch_source(self.general.graph, gpu)
        return general_torch_source(self.general, gpu, tuple(self.numbers))

    def wrap(self, function: GeneralFunction) -> GeneralFunction:
        """Returns the function of the original region, given the function of this one."""
        if not self.inputs and not self.numbers:
            return function

        def fit(args: Sequence[Any], values: Sequence[Value]) -> Run:
            run = function(self.carry(args, values), self.without_numbers(values))
            return lambda args: run(self.carry(args, values))

        return fit


def without_numbers(region: Graph) -> TensorRegion:
    """Returns a region for arguments of one layout as a general region without variables."""
    return TensorRegion(GeneralRegion(region, (), (region,), ((),)), {}, {})


def numbers_to_tensors(general: GeneralRegion) -> TensorRegion:
    """Returns a general region with tensors in place of the numbers of its arithmetic.

    Raises:
        Declined: if one of them cannot be replaced.
    """
    own = len(general.regions[0].inputs)
    dtypes = {
        index: _find_dtype(general.graph, index)
        for index, type_ in enumerate(general.graph.inputs)
        if isinstance(type_, NumberType) and type_.python_type == "float"
    }
    variables = [variable for variable, place in enumerate(general.places) if place is None]
    return TensorRegion(
        general,
        {index: dtype for index, dtype in dtypes.items() if index < own},
        {variables[index - own]: dtype for index, dtype in dtypes.items() if index >= own},
    )


def _find_dtype(graph: Graph, number: int) -> str:
    """Returns the dtype of the tensor that may replace a number.

    Raises:
        Declined: if no dtype can.
    """
    if number in graph.outputs:
        raise Declined("a variable number is a result", Scope.GENERAL)
    found = {dtype for op in graph.ops for dtype in _find_dtypes(op, number)}
    if len(found) > 1:
        raise Declined("a variable number together with tensors with and without dimensions", Scope.GENERAL)
    return found.pop() if found else _DOUBLE


def _find_dtypes(op: Op, number: int) -> Iterator[str]:
    """Yields the dtype of the tensor that may replace a number, for each use of the number by an operation."""
    for path, index in argument_refs(op):
        if index == number:
            if not path.isdecimal() or (int(path),) not in op_traits(op.name).scalar_arguments:
                raise Declined(f"a variable number in {op.name}", Scope.GENERAL)
            yield _dtype_beside(op.outputs[0])


def _dtype_beside(result: object) -> str:
    """Returns the dtype of the tensor that may replace an operand, given the type of the operation's result."""
    if not isinstance(result, TensorType):
        raise Declined("a number computed from a variable number", Scope.GENERAL)
    if result.device != "cpu":
        raise Declined("a variable number on a GPU", Scope.GENERAL)
    dtype = result.dtype.removesuffix("_")
    if dtype not in (_FLOATING if result.shape else _OWN_TYPE):
        raise Declined(f"a variable number together with {dtype}", Scope.GENERAL)
    return _DOUBLE if result.shape else dtype


def _type_of(dtype: str) -> TensorType:
    return TensorType(dtype, (), "cpu")


def _make_tensor(number: float, dtype: str) -> Any:
    import torch

    return torch.tensor(number, dtype=getattr(torch, dtype), device="cpu")
