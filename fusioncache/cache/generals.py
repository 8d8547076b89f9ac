"""Regions that differ only in sizes and numbers: who is compiled with whom, and what was compiled for any sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fusioncache.backends.api import Backend, GeneralFunction, NotGeneral, Run
from fusioncache.cache.lru import LruMap
from fusioncache.cache.sizes import Generation, Sizes
from fusioncache.ir import Graph, NumberType, TensorType, Value
from fusioncache.ir.ops import op_traits, writes_in_place
from fusioncache.process import forks
from fusioncache.template.general_region import Family, make_family
from fusioncache.template.generalization import Generalization, find_values, only
from fusioncache.template.skeleton import Skeleton

_MOST = 64
"""How many places, and how many generalizations, of one skeleton are remembered."""
_MOST_ELEMENTS = 2**31 - 1
"""How many elements a tensor may have so that whoever compiles can count them in 32 bits, whatever its sizes."""

Environment = tuple[tuple[str, str], ...]
"""What a backend's compilations depend on beside what is compiled, by ingredient."""


class GeneralExecutable:
    """What was compiled for any sizes of a region, one function for each kind of layout of the arguments.

    Args:
        family: regions with one generalization.
        backend: compiles.

    Attributes:
        family: the same.
    """

    def __init__(self, family: Family, backend: Backend):
        self.family = family
        self._backend = backend
        self._functions: dict[Hashable, GeneralFunction | NotGeneral] = {}
        self._lock = forks.lock()

    def values_of(self, region: Generalization) -> tuple[Value, ...] | None:
        """Returns the values with which the generalization is this region; None if it is none of its instances."""
        return find_values(self.family.generalization, region)

    def run_for(self, args: Sequence[Any], values: Sequence[Value], on_compile: Callable[[float], None]) -> Run:
        """Returns the function for the arguments of an instance.

        Args:
            args: tensors, as the region's inputs.
            values: of the region's variables.
            on_compile: is told the seconds, if this call had to compile.

        Raises:
            NotGeneral: if there is no such function.
            Exception: whatever the backend raises.
        """
        layout = self._backend.general_layout(args)
        with self._lock:
            function = self._functions.get(layout)
            if function is None:
                start = time.perf_counter()
                function = self._functions[layout] = self._compile(args, values)
                if not isinstance(function, NotGeneral):
                    on_compile(time.perf_counter() - start)
        if isinstance(function, NotGeneral):
            raise function
        return function(args, values)

    def _compile(self, args: Sequence[Any], values: Sequence[Value]) -> GeneralFunction | NotGeneral:
        """Returns what the backend makes, or why it makes nothing, which is not asked again."""
        try:
            return self._backend.compile_general(self.family.general, args, values)
        except NotGeneral as refusal:
            return refusal
        except Exception as error:
            return NotGeneral(f"compile failed: {type(error).__name__}")


@dataclass(slots=True)
class _Place:
    """Regions with one skeleton of several programs, one of each: what is generalized.

    Attributes:
        function: whose programs they are of; None for any.
        last: the number of the last program that has an instance of it.
        family: the regions that were not instances of those before.
    """

    function: object
    last: int
    family: Family


@dataclass(slots=True)
class _Relatives:
    """What is known of regions with one skeleton, under the settings of one environment."""

    places: list[_Place] = field(default_factory=list)
    generals: list[tuple[GeneralExecutable, _Place]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FoundGeneral:
    """What may serve a region.

    Attributes:
        executable: it.
        values: with which it is the region.
    """

    executable: GeneralExecutable
    values: tuple[Value, ...]


class GeneralRegions:
    """The regions that were compiled, by their skeletons, and what was compiled for several of them.

    Args:
        capacity: how many skeletons are remembered. Least recently used leaves first.
    """

    def __init__(self, capacity: int):
        self._relatives: LruMap[tuple[Skeleton, Environment], _Relatives] = LruMap(capacity)
        self._lock = forks.lock()

    def clear(self) -> None:
        """Forgets all of them. What was compiled lives on with those who use it."""
        self._relatives.clear()

    def find(self, region: Graph, generation: Generation, sizes: Sizes, backend: Backend) -> FoundGeneral | None:
        """Finds what may serve a region that is called for the first time; None if it is the first one of its place.

        Args:
            region: with inputs and outputs in the order of its template.
            generation: the program that it is of.
            sizes: with what it may be generalized.
            backend: compiles.
        """
        member = only(region)
        with self._lock:
            relatives = self._find_relatives(member, backend)
            for general, place in reversed(relatives.generals):
                values = general.values_of(member)
                if values is not None:
                    place.last = generation.number
                    return FoundGeneral(general, values)
            return self._join(relatives, region, generation, sizes, backend)

    def expects(self, region: Graph, generation: Generation, sizes: Sizes, backend: Backend) -> bool:
        """Tells whether ``find`` is likely to find something for a region."""
        member = only(region)
        with self._lock:
            relatives = self._find_relatives(member, backend)
            known = any(general.values_of(member) is not None for general, _ in relatives.generals)
            return known or bool(_find_places(relatives, generation, sizes))

    def _find_relatives(self, member: Generalization, backend: Backend) -> _Relatives:
        environment = tuple(sorted(backend.environment().items()))
        return self._relatives.get_or_make((member.skeleton, environment), _Relatives)[0]

    def _join(
        self, relatives: _Relatives, region: Graph, generation: Generation, sizes: Sizes, backend: Backend
    ) -> FoundGeneral | None:
        """Generalizes the place that the region fits best, or makes it the first one of a place of its own."""
        joined = [
            (make_family((*place.family.general.regions, region)), place)
            for place in _find_places(relatives, generation, sizes)
        ]
        if not joined:
            _keep_last(relatives.places, _Place(generation.function, generation.number, make_family((region,))))
            return None
        family, place = min(joined, key=lambda one: len(one[0].variables) - len(one[1].family.variables))
        place.last = generation.number
        if not family.variables:
            return None  # it is the very region of the place
        place.family = family
        general = GeneralExecutable(family, backend)
        _keep_last(relatives.generals, (general, place))
        return FoundGeneral(general, family.general.values[-1])


def _find_places(relatives: _Relatives, generation: Generation, sizes: Sizes) -> list[_Place]:
    """Returns the places that a region may belong to: those of the function that have none of this program."""
    if sizes is Sizes.DYNAMIC:
        return relatives.places
    mine = [place for place in relatives.places if place.function is generation.function]
    return [place for place in mine if place.last != generation.number]


def _keep_last[T](kept: list[T], new: T) -> None:
    """Appends to a list that has no more than so many."""
    kept.append(new)
    del kept[:-_MOST]


def check_general(region: Graph) -> None:
    """Refuses regions that are compiled for their own sizes, whoever compiles them.

    Raises:
        NotGeneral: says why.
    """
    if region.sizes or any(isinstance(type_, NumberType) for type_ in region.inputs):
        raise NotGeneral("numbers or symbolic sizes among the inputs")
    if writes_in_place(region):
        raise NotGeneral("in-place effects")
    if any(op_traits(op.name).random for op in region.ops):
        raise NotGeneral("random numbers")
    types = [*region.inputs, *(type_ for op in region.ops for type_ in op.outputs)]
    if any(_count_elements(type_) > _MOST_ELEMENTS for type_ in types if isinstance(type_, TensorType)):
        raise NotGeneral("more elements than 32 bits count")


def _count_elements(type_: TensorType) -> int:
    return prod(size for size in type_.shape if isinstance(size, int))
