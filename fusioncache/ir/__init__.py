"""The immutable values that stages exchange. Depends on neither torch, nor Thunder, nor a compiler."""

# ruff: noqa: F401
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
