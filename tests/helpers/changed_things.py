"""Things of all kinds that a describer describes, and changes of each of them alone."""

import collections
import contextlib
import dataclasses
import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import optree
import thunder
import torch
from program_keys import Norm, changed
from thunder.core import jit_ext, prims, rematerialization, symbol, transforms, utils
from thunder.core.pytree import OPTREE_NAMESPACE
from thunder.distributed.transforms import ddp


class Words(str):
    """A text with attributes."""


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    more: list[int]


@dataclasses.dataclass
class Settings:
    mode: str = "rms"
    steps: int = 2


class Written:
    """Is in an annotation, and nowhere else."""


class Named(type):
    """The class of a class."""


class Marked(metaclass=Named):
    """A class that is changed."""

    other: Written
    note: int
    size = 3

    @property
    def half(self) -> float:
        return 1.5

    def method(self) -> int:
        return 1


def make_loose(**namespace: Any) -> Callable[..., Any]:
    """Returns a function whose globals are no module's."""
    namespace["factor"] = 2.0
    exec("def loose(x):\n    return x * factor", namespace)
    return namespace["loose"]


def make_module(name: str) -> types.ModuleType:
    """Returns a module that has a function, and is found under its name."""
    module = sys.modules[name] = types.ModuleType(name)
    exec("def found(x):\n    return x", vars(module))
    return module


def missing(module: types.ModuleType) -> Any:
    """A module that is not found under its name meanwhile."""
    name = module.__name__
    return done(lambda: sys.modules.pop(name), lambda: sys.modules.update({name: module}))


def closed(over: list[int]) -> Callable[[], int]:
    def inner() -> int:
        return over[0] + len(LATER)

    return inner


LATER: list[int] = []


def keyed(x: int, *, power: int = 2) -> int:
    return x**power


@functools.lru_cache
def remembers(x: int) -> int:
    return x


def make_things(place: str) -> dict[str, Any]:
    """Returns things that a describer describes."""
    settings, marked, module = Settings(), Marked(), make_module(f"of_nobody_{place}")
    ordered, partial = collections.OrderedDict(a=1, b=2), functools.partial(keyed, 1)
    static: Any = staticmethod(lambda: 1)
    ordered.mark = partial.mark = static.mark = [1]  # type: ignore[attr-defined]
    return {
        "words": Words("a"),
        "color": Color.RED,
        "settings": settings,
        "point": Point(1, [1]),
        "marked": marked,
        "options": {"limits": [300, 400], "others": [500]},
        "ordered": ordered,
        "frozen": frozenset({marked}),
        "weak": weakref.ref(settings),
        "named_loose": make_loose(__name__="of_none"),
        "found": vars(make_module(f"of_a_function_{place}"))["found"],
        "closed": closed([1]),
        "empty": types.CellType(),
        "keyed": keyed,
        "remembers": remembers,
        "partial": partial,
        "static": {"it": static},
        "module": module,
    }


class Model(torch.nn.Module):
    """What modules have and others have not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.tied = torch.nn.Linear(4, 4)
        self.norm = Norm(4)
        self.register_buffer("table", torch.zeros(4))
        self.extra = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


@contextlib.contextmanager
def put(table: Any, key: Any, value: Any) -> Iterator[None]:
    """Has another item in a table or a list meanwhile; others stay where they are."""
    before = table[key]
    table[key] = value
    try:
        yield
    finally:
        table[key] = before


@contextlib.contextmanager
def done(do: Callable[[], Any], undo: Callable[[], Any]) -> Iterator[None]:
    do()
    try:
        yield
    finally:
        undo()


@contextlib.contextmanager
def assigned(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def with_another_constant(function: Any) -> types.FunctionType:
    """Returns a function like another one whose code has one constant more."""
    code = function.__code__.replace(co_consts=(*function.__code__.co_consts, 1))
    name, defaults, closure = function.__name__, function.__defaults__, function.__closure__
    return types.FunctionType(code, function.__globals__, name, defaults, closure)


def rename(table: Any, old: str, new: str) -> Any:
    """The same values in the same order, the last one under another key."""
    return done(lambda: table.__setitem__(new, table.pop(old)), lambda: table.__setitem__(old, table.pop(new)))


@contextlib.contextmanager
def registered_pytree() -> Iterator[None]:
    optree.register_pytree_node(Settings, lambda x: ((), None), lambda _, parts: Settings(), namespace=OPTREE_NAMESPACE)
    yield
    optree.unregister_pytree_node(Settings, namespace=OPTREE_NAMESPACE)


class Remarked(Marked):
    """Another class of an object."""


THINGS: dict[str, Callable[[Any], Any]] = {
    # Objects and containers.
    "what a weak reference is of": lambda m: assigned(m.settings, "steps", 9),
    "an attribute of a text": lambda m: changed(m.words, "mark", 1),
    "an attribute of a member of an enumeration": lambda m: changed(m.color, "mark", 1),
    "an attribute of an ordered dict": lambda m: put(m.ordered.mark, 0, 2),
    "another attribute of an ordered dict": lambda m: assigned(m.ordered, "mark", 2),
    "an attribute of a partial function": lambda m: assigned(m.partial, "mark", 2),
    "an attribute of a static method": lambda m: assigned(m.static["it"], "mark", 2),
    "an item that goes over to the next list": lambda m: done(
        lambda: m.options["others"].insert(0, m.options["limits"].pop()),
        lambda: m.options["limits"].append(m.options["others"].pop(0)),
    ),
    "an item of a list in a named tuple": lambda m: put(m.point.more, 0, 2),
    "an attribute of what is in a set that is fixed": lambda m: changed(m.marked, "mark", 1),
    "what is in an empty cell": lambda m: done(
        lambda: setattr(m.empty, "cell_contents", 1), lambda: delattr(m.empty, "cell_contents")
    ),
    # Functions.
    "code": lambda m: assigned(keyed, "__code__", keyed.__code__.replace(co_consts=(*keyed.__code__.co_consts, 1))),
    "a default of a method": lambda m: assigned(Marked.method, "__defaults__", (1,)),
    "code of a method": lambda m: assigned(Marked.method, "__code__", with_another_constant(Marked.method).__code__),
    "an attribute of a function": lambda m: changed(keyed, "mark", 1),
    "the name of a function": lambda m: assigned(keyed, "__qualname__", "other"),
    "the module of a function": lambda m: assigned(keyed, "__module__", "other"),
    "a list in a cell": lambda m: put(m.closed.__closure__[0].cell_contents, 0, 2),
    "a global of a function whose module is not found": lambda m: put(m.named_loose.__globals__, "factor", 3.0),
    "whether the module of a function is found": lambda m: missing(sys.modules[m.found.__module__]),
    "the module that a function is of": lambda m: put(globals(), "__name__", "other"),
    "an attribute of a function behind a cache": lambda m: changed(remembers, "mark", 1),
    "a module that is not found": lambda m: missing(m.module),
    "the name of a module": lambda m: assigned(m.module, "__name__", "sys"),
    # Classes.
    "the name of a class in an annotation": lambda m: assigned(Written, "__qualname__", "Other"),
    "the name of an annotation": lambda m: rename(Marked.__annotations__, "note", "rest"),
    "the class of an object": lambda m: assigned(m.marked, "__class__", Remarked),
}
"""Things of a model or of a class that is a part of it, each changed alone."""

OF_A_MODEL: dict[str, Callable[[Model], Any]] = {
    "a method of a base": lambda m: assigned(torch.nn.Module, "add_module", lambda *given: None),
    "the bases of a class": lambda m: assigned(Norm, "__bases__", (torch.nn.Identity,)),
    "a property that is made again": lambda m: done(
        lambda: Norm.gain.__init__(None, Norm.gain.fget), lambda: Norm.gain.__init__(Norm.gain.fset)
    ),
    "an attribute": lambda m: assigned(m.norm, "eps", 1.0),
    "the name of an attribute": lambda m: rename(vars(m), "extra", "other"),
    # Modules of torch.
    "training": lambda m: done(m.norm.eval, m.norm.train),
    "a hook": lambda m: contextlib.closing(
        types.SimpleNamespace(close=m.linear.register_forward_hook(lambda *given: given[2]).remove)
    ),
    "a module": lambda m: assigned(m, "linear", torch.nn.Linear(4, 4, bias=False)),
    # Tensors.
    "what needs gradients": lambda m: assigned(m.linear.bias, "requires_grad", False),
    "the type of a parameter": lambda m: assigned(m.linear.weight, "data", torch.zeros(4, 4).double()),
    "an attribute of a parameter": lambda m: changed(m.linear.weight, "mark", 1),
    "a hook of a parameter": lambda m: contextlib.closing(
        types.SimpleNamespace(close=m.linear.weight.register_hook(lambda grad: grad * 2).remove)
    ),
    "the type of a buffer": lambda m: assigned(m, "table", torch.zeros(4).double()),
}
"""What only a model has."""

OF_THUNDER: dict[str, Callable[[], Any]] = {
    "a global of Thunder's": lambda: changed(rematerialization, "find_cut", utils.check),
    "a new global of Thunder's": lambda: changed(rematerialization, "another", 1),
    "a function of Thunder's with other code": lambda: changed(
        rematerialization, "find_cut", with_another_constant(rematerialization.find_cut)
    ),
    "a method of Thunder's": lambda: changed(symbol.BoundSymbol, "has_input", utils.check),
    "a method that Python made for Thunder": lambda: changed(
        symbol.BoundSymbolRHS, "__hash__", with_another_constant(symbol.BoundSymbolRHS.__hash__)
    ),
    "a table of Thunder's": lambda: changed(transforms.backward_impls, prims.PrimIDs.SIN, utils.check),
    "a lookaside": lambda: changed(jit_ext._general_jit_lookaside_map, torch.sin, utils.check),
    "a function in the map": lambda: changed(thunder.torch._torch_to_thunder_function_map, torch.sin, utils.check),
    "a function of a module that takes part": lambda: changed(ddp, "apply_bucketing_to_grad_allreduce", utils.check),
    "a class that is taken apart": lambda: registered_pytree(),
    "somebody else's function in Thunder": lambda: changed(rematerialization, "find_cut", keyed),
}
"""What Thunder is made of."""
