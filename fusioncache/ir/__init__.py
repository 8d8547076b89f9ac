"""The immutable values that stages exchange. Depends on neither torch, nor Thunder, nor a compiler."""

from fusioncache.ir.errors import Declined, Scope, is_declined
from fusioncache.ir.graph import (
    Arg,
    Const,
    GeneralInstance,
    GeneralRegion,
    Graph,
    NumberType,
    Op,
    Ref,
    Region,
    TensorType,
    Value,
    ValueType,
    map_arg,
    map_type,
    operands,
    refs_in,
)
from fusioncache.ir.ops import AS_WRITTEN, Arithmetic
from fusioncache.ir.template import Binding, Ingredient, Instance, Key, Template

__all__ = [
    "AS_WRITTEN",
    "Arg",
    "Arithmetic",
    "Binding",
    "Const",
    "Declined",
    "GeneralInstance",
    "GeneralRegion",
    "Graph",
    "Ingredient",
    "Instance",
    "Key",
    "NumberType",
    "Op",
    "Ref",
    "Region",
    "Scope",
    "Template",
    "TensorType",
    "Value",
    "ValueType",
    "is_declined",
    "map_arg",
    "map_type",
    "operands",
    "refs_in",
]
