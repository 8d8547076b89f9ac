"""A size that nobody had costs next to nothing where something for any sizes is ready, and only there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from drawn_regions import Sketch

from fusioncache.backends.api import GeneralFunction, Run
from fusioncache.backends.eager import Eager
from fusioncache.cache import cache as cache_module
from fusioncache.cache import generals
from fusioncache.cache.backend_executables import Asking, BackendExecutables
from fusioncache.cache.cache import Cache
from fusioncache.cache.general_executable import GeneralBuilder, ServedGeneral
from fusioncache.cache.generals import GeneralRegions
from fusioncache.cache.sizes import Generation, Sizes
from fusioncache.ir import Declined, Graph, Instance, Scope, TensorType, Value
from fusioncache.template.canonical import canonicalize
from fusioncache.template.instance import instance_of
from fusioncache.template.key import template_key

FUNCTION = object()


def region(*shape: int, dtype: str = "float32", number: float = 0.5, name: str = "sin", swapped: bool = False) -> Graph:
    """Returns ``sin(x) * number, x - y``, or the same with the operations the other way round."""
    s = Sketch()
    x, y = (s.input(TensorType(dtype, shape, "cpu")) for _ in range(2))
    difference = s.op("sub", x, y) if swapped else None
    scaled = s.op("mul", s.op(name, x), number)
    return s.graph(scaled, difference or s.op("sub", x, y))


class Contiguous(Eager):
    """What is compiled is for arguments that are contiguous, or for others, and not for sizes of 13."""

    settings = "as ever"

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "settings": self.settings}

    def general_layout(self, args: Sequence[Any]) -> tuple[bool, ...]:
        return tuple(arg.is_contiguous() for arg in args)

    def compile_general(self, *about: Any) -> GeneralFunction:
        fit = super().compile_general(*about)

        def fit_all_but_13(args: Sequence[Any], values: Sequence[Value]) -> Run:
            if 13 in values:
                raise Declined("13", Scope.GENERAL)
            return fit(args, values)

        return fit_all_but_13


@dataclass
class Process:
    """Calls regions of a function's programs, and notes which of their graphs were written."""

    cache: Cache = field(default_factory=lambda: Cache(record=False, store=False))
    backend: Eager = field(default_factory=Contiguous)
    written: list[Graph] = field(default_factory=list)
    served: list[ServedGeneral] = field(default_factory=list)

    def call(
        self,
        graph: Graph,
        number: int,
        *,
        args: Sequence[torch.Tensor] = (),
        sizes: Sizes = Sizes.AUTO,
        change: Callable[[Asking], Asking] = lambda asking: asking,
    ) -> list[torch.Tensor]:
        canonical = canonicalize(graph)
        instance = instance_of(graph, canonical.binding)

        def write() -> Graph:
            self.written.append(canonical.graph)
            return canonical.graph

        generation = Generation(FUNCTION, number)
        asking = Asking(
            canonical.graph,
            write,
            lambda *_: None,
            self.served.append,
            lambda: None,
            self.served.append,
            generation,
            instance,
        )
        args = args or [torch.randn(type_.shape, dtype=getattr(torch, type_.dtype)) for type_ in graph.inputs]
        args = [args[position] for position in canonical.binding.arguments]
        executables = BackendExecutables(self.backend, self.cache, self.cache.ledger, sizes=sizes)
        results = executables.run_for(args, change(asking))(args)
        return [results[position] for position in canonical.binding.outputs]


@pytest.fixture
def process() -> Process:
    """A process in which a function for any length is ready."""
    new = Process()
    new.call(region(3, 4), 0)
    new.call(region(3, 6), 1)
    assert len(new.written) == 2 and len(new.served) == 1 and new.served[0].is_new
    new.written.clear()
    return new


def test_nothing_is_written_for_a_size_that_nobody_had(process):
    x, y = torch.randn(2, 3, 9)
    results = process.call(region(3, 9), 2, args=(x, y))
    assert torch.equal(results[0], x.sin() * 0.5) and torch.equal(results[1], x - y)
    assert not process.written and len(process.served) == 2
    again = process.served[1]
    assert not again.is_new and again.built is process.served[0].built and again.source is process.served[0].source


@pytest.mark.parametrize(
    "graph",
    [
        region(3, 1),
        region(3, 0),
        region(3, 13),
        region(4, 9),
        region(3, 9, 2),
        region(3, 9, dtype="float64"),
        region(3, 9, number=0.25),
        region(3, 9, number=1.0),
        region(3, 9, number=0.0),
        region(3, 9, name="cos"),
        region(3, 9, swapped=True),
    ],
)
def test_what_it_is_not_ready_for_is_asked_for_as_ever(process, graph):
    process.call(graph, 2)
    assert process.written == [canonicalize(graph).graph]


@pytest.mark.parametrize(
    "change",
    [lambda asking: replace(asking, generation=None), lambda asking: replace(asking, instance=None)],
    ids=["no program", "no region"],
)
def test_who_asks_must_be_known(process, change):
    process.call(region(3, 9), 2, change=change)
    assert process.written


def test_settings_are_asked_each_time(process):
    process.backend.settings = "others"
    process.call(region(3, 9), 2)
    assert process.written and len(process.served) == 1


def test_static_sizes_are_compiled(process):
    process.call(region(3, 9), 2, sizes=Sizes.STATIC)
    assert process.written and len(process.served) == 1


def test_another_kind_of_layout_is_compiled(process):
    process.call(region(3, 9), 2, args=[torch.randn(9, 3).t() for _ in range(2)])
    assert process.written and process.served[-1].is_new


def test_arguments_that_are_none_of_the_region_are_asked_for_as_ever(process):
    process.call(region(3, 9), 2, args=[torch.randn(3, 10) for _ in range(2)])
    assert process.written


def test_what_is_compiled_for_its_own_sizes_stays_so(process):
    process.call(region(3, 4), 2)
    assert not process.written  # it was, when it was compiled
    process.call(region(3, 9), 3, sizes=Sizes.STATIC)
    process.call(region(3, 9), 4)
    assert len(process.served) == 1


def test_the_region_that_called_first_is_the_one_that_is_served(process):
    """Two that are one template, and write their operations in other orders."""
    process.call(region(3, 9), 2)
    assert not process.written
    process.call(region(3, 9, swapped=True), 2)
    assert len(process.written) == 1 and len(process.served) == 3
    assert process.served[1].source == process.served[2].source


def test_too_many_elements_are_not_served(process, monkeypatch):
    monkeypatch.setattr(generals, "MOST_ELEMENTS", 27)
    process.call(region(3, 9), 2)
    assert not process.written
    process.call(region(3, 10), 2)
    assert process.written
    assert process.cache.stats().own_sizes == {"a tensor with more elements than a 32-bit index can count": 1}


def test_what_is_forgotten_is_not_served(process):
    process.cache.clear()
    process.call(region(3, 9), 2)
    assert process.written and len(process.served) == 1


def test_a_program_that_was_served_has_its_region_in_that_place():
    """So that no other region of it is generalized with those."""

    def instance(*shape: int) -> Instance:
        graph = region(*shape)
        return instance_of(graph, canonicalize(graph).binding)

    regions, builder = GeneralRegions(8), GeneralBuilder(Eager())
    for number, length in enumerate((4, 6)):
        regions.find(region(3, length), Generation(FUNCTION, number), Sizes.AUTO, builder)
    assert regions.find_again(instance(3, 9), Generation(FUNCTION, 2), builder.environment) is None
    regions.note_served(instance(3, 6), builder.environment)
    found = regions.find_again(instance(3, 9), Generation(FUNCTION, 2), builder.environment)
    assert found and found.values == (9,)
    assert regions.find(region(5, 9), Generation(FUNCTION, 2), Sizes.AUTO, builder) is None
    other = regions.find(region(6, 9), Generation(FUNCTION, 3), Sizes.AUTO, builder)
    assert other and other.executable is not found.executable


def test_the_key_of_a_template_is_written_once_for_each_graph_and_settings(monkeypatch):
    written = []
    monkeypatch.setattr(cache_module, "template_key", lambda *about: written.append(about) or template_key(*about))
    cache, backend = Cache(record=False, store=False), Contiguous()
    graph = canonicalize(region(3, 9)).graph
    first, was_known = cache.template(graph, backend.environment())
    assert not was_known and cache.template(replace(graph), backend.environment()) == (first, True)
    assert len(written) == 1
    backend.settings = "others"
    other, was_known = cache.template(graph, backend.environment())
    assert not was_known and other.key != first.key and len(written) == 2
    for changed in (region(3, 10), region(3, 9, number=1.0), region(3, 9, dtype="float64")):
        assert cache.template(canonicalize(changed).graph, backend.environment())[0].key != other.key
    assert len(written) == 5
