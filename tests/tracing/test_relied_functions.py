"""What shortcuts rely on beside the function that they replace: where that is another one, they are not put in.

Of what can be known only when they run, such as the class of an object, it is that which they ask.
"""

import importlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import thunder
import torch
from fusioncache.tracing.passes.substitution import shorten_processing
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.core.trace_interpreter import TraceSubstitutionProcessor

from fusioncache import tracing
from fusioncache.tracing.installation import GROUPS

RELIED = {
    "flattening": ("optree:tree_flatten",),
    "leaps": (
        "thunder.torch.experimental.dtensor_torch_and_prims:dispatch_to_impl",
        "thunder.core.pytree:tree_flatten",
        "optree:tree_flatten",
        "torch.distributed:is_available",
    ),
    "min_cut": ("thunder.core.rematerialization:find_cut",),
    "printing": (
        *(f"thunder.core.codeutils:{name}" for name in ("_to_printable", "is_printable")),
        *(f"thunder.core.baseutils:is_base_printable{part}" for part in ("", "_value", "_type")),
    ),
    "substitution": ("thunder.core.symbol:BoundSymbol.from_bsym_swap_proxies",),
}
"""The functions by their groups, each by module and name."""


@pytest.fixture(autouse=True)
def _thunders_own() -> Iterator[None]:
    tracing.uninstall()
    yield
    tracing.uninstall()


def other(*args: Any, **kwargs: Any) -> Any:
    """Stands in for a function, as another version would have it."""
    raise AssertionError("it is only looked at")


@pytest.mark.parametrize(("group", "place"), [(group, place) for group, places in RELIED.items() for place in places])
def test_where_another_function_is_called_on_the_way_there_is_no_shortcut(group, place, monkeypatch):
    assert GROUPS[group]()
    module, _, name = place.partition(":")
    owner, _, attribute = name.rpartition(".")
    holder = importlib.import_module(module)
    monkeypatch.setattr(getattr(holder, owner) if owner else holder, attribute, other)
    assert GROUPS[group]() == ()


class Own(BoundSymbol):
    """A class of somebody's, whose proxies are exchanged in a way of its own."""

    asked: ClassVar[list[str]] = []

    def from_bsym_swap_proxies(self, swap_map: Any, **flags: Any) -> BoundSymbol:
        self.asked.append(self.sym.name)
        return super().from_bsym_swap_proxies(swap_map, **flags)


class Exchanging(TraceSubstitutionProcessor):
    """Puts cosines in the place of sines, as operations of some class."""

    def __init__(self, trace: TraceCtx, kind: type[BoundSymbol]):
        super().__init__(trace)
        self.kind = kind

    def process_bsym(self, bsym: BoundSymbol) -> None:
        if bsym.sym.name == "sin":
            self.add_bsyms_from_function(thunder.torch.cos, *map(self.read, bsym.args))
            made = self.new_bsyms
        else:
            made = [bsym]
            self.set_result(bsym.output)
        self.new_bsyms = [
            self.kind(each.sym, each.args, each.kwargs, each.output, subsymbols=each.subsymbols) for each in made
        ]


def make_trace() -> TraceCtx:
    compiled = thunder.jit(lambda x: torch.sin(torch.sin(x) * 2) + 1)
    compiled(torch.ones(2))
    return next(each for each in thunder.last_traces(compiled) if any(b.sym.name == "sin" for b in each.bound_symbols))


@pytest.mark.parametrize("kind", [BoundSymbol, Own])
def test_operations_of_every_class_are_exchanged_as_they_say(kind):
    original = vars(TraceSubstitutionProcessor)["__call__"]
    results = []
    for process in (original, shorten_processing(original)):
        Own.asked.clear()
        new, _ = process(Exchanging(make_trace(), kind))
        results.append((str(new), list(Own.asked)))
    assert results[0] == results[1]
    assert "cos" in results[0][0] and bool(results[0][1]) is (kind is Own)
