"""Actions of one model in a process that may affect whether programs of later models are stored.

``python -m odd_models all STORE`` does all of them, and prints the program counts of another model after each.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import thunder
import torch
import torch.nn.functional as F
from behind_dynamo import compile_behind_dynamo
from models import curve
from stored_programs import Cell, compile_anew, counts
from thunder.extend import ImplInfo, OperatorExecutor, add_default_executor, register_executor, remove_default_executor

import fusioncache

X = torch.ones(3, 4)
STORE = Path(sys.argv[2] if len(sys.argv) > 2 else ".")
LIBRARY = torch.library.Library("fusioncache_tests", "DEF")


def call(function: Any, *args: Any, **options: Any) -> Any:
    """Compiles and calls a function, and suppresses its exceptions."""
    with contextlib.suppress(Exception, KeyboardInterrupt):
        return compile_anew(function, STORE, jit=options)[0](*(args or (X,)))


def have_hooks() -> None:
    model = Cell()
    model.register_forward_hook(lambda *_: None)
    model.register_full_backward_hook(lambda *_: None)
    call(model)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    call(Cell())
    handle.remove()


def make_operation(name: str) -> Any:
    own = torch.library.custom_op(
        f"fusioncache_tests::{name}", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    own.register_fake(lambda x: torch.empty_like(x))
    return own


def define_operations() -> None:
    own = make_operation("double")
    LIBRARY.define("half(Tensor x) -> Tensor")
    LIBRARY.impl("half", lambda x: x / 2, "CPU")
    call(lambda x: torch.ops.fusioncache_tests.half(own(x)))


class Failing(thunder.Transform):
    def cache_key(self):
        return "failing"

    def transform_traces_pre_prologue(self, *traces, **options):
        raise KeyboardInterrupt


def fail() -> None:
    for error in (ValueError, KeyboardInterrupt):

        def raising(x, error=error):
            torch.sin(x)
            raise error

        call(raising)
    call(Cell(), transforms=[Failing()])
    call(lambda x: x @ x)


def nest() -> None:
    inner, model = compile_anew(curve, STORE)[0], Cell()
    call(lambda x: inner(x) + 1)
    model.linear = compile_anew(model.linear, STORE)[0]
    call(model)
    call(lambda x: thunder.jit(curve)(x))


def replace_and_restore() -> None:
    def around(own):
        return lambda *args, **kwargs: own(*args, **kwargs)

    places = ((F, "linear"), (thunder.torch, "tanh"), (torch.nn.Module, "__call__"), (builtins, "print"))
    for holder, name in (*places, (thunder, "jit")):
        own = getattr(holder, name)
        setattr(holder, name, around(own))
        call(Cell())
        setattr(holder, name, own)


def register_executors() -> None:
    executor = OperatorExecutor("odd", version="1")
    register_executor(executor)
    executor._implmap["torch.tanh"] = ImplInfo(checker=lambda *_: False)
    call(Cell(), executors=[executor, *fusioncache.executors()])
    add_default_executor(executor)
    call(Cell())
    remove_default_executor(executor)


HARMLESS = (torch._dynamo.reset, have_hooks, define_operations, fail, nest, replace_and_restore, register_executors)
"""Actions that later programs do not depend on: a process without these actions loads them."""


def use_thunderfx():
    compile_behind_dynamo(Cell(), STORE)[0](X).sum().backward()


def double(a):
    return thunder.torch.mul(a, 2)


def register_operations() -> None:
    custom_op = importlib.import_module("thunder.torch.custom_op")
    custom_op._register_custom_op(make_operation("own"))
    thunder.torch.torchsymbol(torch.special.zeta, id="odd.zeta")(double)
    call(lambda x: torch.ops.fusioncache_tests.own(torch.special.zeta(x)))


def add_methods() -> None:
    torch.Tensor.odd = lambda self: self * 2  # type: ignore[attr-defined]
    torch.nn.Module.odd = lambda self: 2  # type: ignore[assignment]
    call(lambda x: x.odd())


def replace_for_good() -> None:
    own = thunder.torch.cos
    thunder.torch.cos = lambda a: own(a)
    call(lambda x: torch.cos(x))


LASTING = (use_thunderfx, add_methods)
"""Actions that later programs depend on: a process with the same actions loads them."""
REFUSED = (register_operations, replace_for_good)
"""Actions that put foreign code into Thunder's tables: no program is stored from then on."""


def list_programs(which: str) -> Iterator[tuple[str, Any]]:
    """Yields the name of each action, and the program counts of another model after it."""
    for number, do in enumerate((*HARMLESS, *LASTING, *REFUSED)):
        if which == "all" or do not in HARMLESS:
            do()
        model, transform = compile_anew(Cell(scale=number + 3), STORE)
        model(torch.ones(3, 4))
        yield do.__name__, counts(transform)


if __name__ == "__main__":
    print(json.dumps(dict(list_programs(sys.argv[1]))))
