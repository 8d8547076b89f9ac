"""From a reference to the object that it names. Nothing is called, and only reviewed packages are imported."""

from __future__ import annotations

import sys
from enum import Enum
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.references import ModuleReference, NamedReference, SymbolReference
from fusioncache.accelerators.programs.source import is_reviewed
from fusioncache.ir.errors import Declined, Scope


def resolve_module(reference: ModuleReference) -> ModuleType:
    """Returns the module of this name, which is imported if it is one of a reviewed package.

    Raises:
        ValueError: if it is not there.
    """
    module = sys.modules.get(reference.module)
    if module is None and is_reviewed(reference.module):
        try:
            module = import_module(reference.module)
        except ImportError as error:
            raise ValueError(f"module {reference.module} cannot be imported: {error}") from error
    if module is None:
        raise ValueError(f"module {reference.module} is not there")
    return module


def resolve_name(reference: NamedReference) -> Any:
    """Returns the function, class, member of an enumeration or constant of this name.

    Of packages that are not reviewed only classes and members of enumerations are returned, and those only if the
    package was imported: a trace checks for them and makes the results that a model returns.

    Raises:
        ValueError: if it is not there, or the name leads through or to another module.
    """
    value: Any = resolve_module(ModuleReference(reference.module))
    for name in reference.name.split("."):
        value = getattr(value, name, None)
        if value is None or isinstance(value, ModuleType):
            raise ValueError(f"{reference.module} has no {reference.name}")
    if not isinstance(value, (type, Enum)) and not _is_function_or_constant(value, reference):
        raise ValueError(f"{reference.module}.{reference.name} is nothing that stored programs may use")
    return value


def _is_function_or_constant(value: Any, reference: NamedReference) -> bool:
    if not is_reviewed(reference.module):
        return False
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return value.__module__ == reference.module and value.__qualname__ == reference.name
    return is_constant_of_torch(value)


def is_constant_of_torch(value: Any) -> bool:
    """Tells whether a value is one that torch has one object for, in a module and under its name."""
    return isinstance(value, (torch.dtype, torch.layout, torch.memory_format))


class Resolver:
    """Finds what references name, and sees to it that it is what it was. Made anew for each program."""

    def __init__(self) -> None:
        self._describer = Describer()

    def find_value(self, reference: NamedReference) -> Any:
        """Returns what ``resolve_name`` does.

        Raises:
            ValueError: if it is not there, or another.
        """
        value = resolve_name(reference)
        self._compare(value, reference.text, f"{reference.module}.{reference.name}")
        return value

    def find_function(self, reference: SymbolReference) -> Any:
        """Returns the function with which an executor implements an operation.

        Raises:
            ValueError: if there is no such executor, or it has no such operation, or another one.
        """
        from fusioncache.thunder_adapter.api import get_executor

        executor = get_executor(reference.executor)
        function = executor and find_implementation(executor, reference.symbol)
        if function is None:
            raise ValueError(f"executor {reference.executor} has no function for {reference.symbol}")
        self._compare(function, reference.text, f"{reference.symbol} of executor {reference.executor}")
        return function

    def describe(self, value: Any) -> str:
        """Returns a text that another value of this name would not have.

        It is empty for classes and constants of reviewed packages: programs depend on the versions of these.

        Raises:
            Declined: if the value has none.
        """
        is_versioned = is_constant_of_torch(value) or (isinstance(value, type) and is_reviewed(value.__module__))
        return "" if is_versioned else self._describer.describe(value)

    def _compare(self, value: Any, text: str, name: str) -> None:
        try:
            equal = self.describe(value) == text
        except Declined as error:
            error.require(Scope.VALUE, Scope.AMOUNT)
            raise ValueError(f"{name} cannot be compared: {error}") from error
        if not equal:
            raise ValueError(f"{name} is another one than when the program was made")


def find_implementation(executor: Any, name: str) -> Any:
    """Returns the function with which an executor implements an operation; None if there is none.

    Thunder keeps it nowhere but in the function that completes bound symbols of the operation, so one is completed.
    """
    symbol = executor.opmap.get(name)
    if symbol is None or symbol._bind_postprocess is None:
        return None
    bound = SimpleNamespace(_call_ctx=None)
    try:
        symbol._bind_postprocess(bound)
    except Exception:  # the operation's own code, which expects more of a bound symbol
        return None
    return (bound._call_ctx or {}).get(name)
