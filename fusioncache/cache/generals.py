"""Regions that differ only in sizes and numbers: who is compiled with whom, here and in the processes before."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from fusioncache.cache.general_executable import GeneralBuilder, GeneralExecutable
from fusioncache.cache.kept_places import Holes, KeptPlace, keep_place, read_places
from fusioncache.cache.sizes import Generation, Sizes
from fusioncache.ir import Declined, Graph, Instance, Key, NumberType, Scope, TensorType, Value
from fusioncache.ir.ops import op_traits, writes_in_place
from fusioncache.process import forks
from fusioncache.process.lru import LruMap
from fusioncache.template.general_region import Family, in_order_of_template, make_family
from fusioncache.template.holes import read_holes
from fusioncache.template.key import skeleton_key
from fusioncache.template.name import template_name
from fusioncache.template.pattern import Pattern, outline_of, pattern_of
from fusioncache.template.skeleton import Skeleton, check_fits, fill, skeleton_of

logger = logging.getLogger("fusioncache")

_MOST = 64
"""How many places, and how many generalizations, of one skeleton are remembered."""
MOST_ELEMENTS = 2**31 - 1
"""How many elements a tensor may have so that whoever compiles can count them in 32 bits, whatever its sizes."""

Environment = tuple[tuple[str, str], ...]
"""What a backend's compilations depend on beside what is compiled, by ingredient."""


@dataclass(slots=True)
class _Place:
    """Regions with one skeleton of several programs, one of each: what is generalized.

    Attributes:
        name: of the function whose programs they are of.
        instances: what is in the holes of the regions that were not instances of those before.
        function: stands for the function in this process; None while none has had a region here.
        last: the number of the last program that has an instance of it.
    """

    name: str
    instances: tuple[Holes, ...]
    function: object | None = None
    last: int | None = None

    def is_open(self, generation: Generation) -> bool:
        """Tells whether a region of this program may be the next one here."""
        if self.function is None:
            return bool(self.name) and self.name == generation.name
        return self.function is generation.function and self.last != generation.number

    def enter(self, generation: Generation) -> None:
        """Notes that a region of this program is an instance."""
        if self.function is None and self.name == generation.name:
            self.function = generation.function
        if self.function is generation.function:
            self.last = generation.number


@dataclass(slots=True)
class _Relatives:
    """What is known of regions with one skeleton, under the settings of one environment."""

    skeleton: Skeleton
    key: Key | None = None
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


@dataclass(frozen=True, slots=True)
class _Served:
    """Regions with one skeleton of which one was served by a function for any sizes."""

    pattern: Pattern
    skeleton: Skeleton


class GeneralRegions:
    """The regions that were compiled, by their skeletons, and what was compiled for several of them.

    With a store, those of earlier processes are among them.

    Args:
        capacity: how many skeletons are remembered. Least recently used leaves first.
    """

    def __init__(self, capacity: int):
        self._relatives: LruMap[tuple[Skeleton, Environment], _Relatives] = LruMap(capacity)
        self._served: LruMap[tuple[Hashable, Environment], list[_Served]] = LruMap(capacity)
        self._lock = forks.lock()

    def clear(self) -> None:
        """Forgets all of them. What was compiled lives on with those who use it, and what is stored in the store."""
        self._relatives.clear()
        self._served.clear()

    def note_served(self, instance: Instance, environment: Mapping[str, str]) -> None:
        """Notes that a function for any sizes serves a region, so that others like it are found at once.

        Args:
            instance: the region. ``check_general`` refuses nothing in it but perhaps its size.
            environment: of the backend.
        """
        settings = _sort(environment)
        with self._lock:
            served = self._served.get_or_make((_outline(instance), settings), list)[0]
            if any(each.pattern.match(instance.region) is not None for each in served):
                return
            relatives = self._relatives.find((skeleton_of(in_order_of_template(instance)), settings))
            if relatives is not None:
                # This very skeleton: to compare it with an equal one takes longer than all else.
                _keep_last(served, _Served(pattern_of(instance), relatives.skeleton))

    def find_again(
        self, instance: Instance, generation: Generation, environment: Mapping[str, str]
    ) -> FoundGeneral | None:
        """Does as ``find`` for a region like one that was served before, and asks neither the store nor its text.

        Args:
            instance: the region.
            generation: the program that it is of.
            environment: of the backend.

        Returns:
            What ``find`` would return; None if that is not known at once, or if it has too many elements.
        """
        settings = _sort(environment)
        with self._lock:
            for served in self._served.find((_outline(instance), settings)) or ():
                holes = served.pattern.match(instance.region)
                if holes is None:
                    continue
                relatives = self._relatives.find((served.skeleton, settings))
                if relatives is None or served.pattern.count_elements(holes) > MOST_ELEMENTS:
                    return None
                return _find_general(relatives, holes, generation)
        return None

    def find(self, region: Graph, generation: Generation, sizes: Sizes, builder: GeneralBuilder) -> FoundGeneral | None:
        """Finds what may serve a region that is called for the first time; None if it is the first one of its place.

        Args:
            region: with inputs and outputs in the order of its template.
            generation: the program that it is of.
            sizes: with what it may be generalized.
            builder: builds functions for any sizes.
        """
        with self._lock:
            relatives = self._find_relatives(skeleton_of(region), builder)
            holes = read_holes(region)
            found = _find_general(relatives, holes, generation)
            return found or _join(relatives, holes, generation, sizes, builder)

    def expects(self, region: Graph, generation: Generation, sizes: Sizes, builder: GeneralBuilder) -> bool:
        """Tells whether ``find`` is likely to find something for a region."""
        with self._lock:
            relatives = self._find_relatives(skeleton_of(region), builder)
            instance = read_holes(region)
            if any(general.values_of(instance) is not None for general, _ in relatives.generals):
                return True
            places = _find_places(relatives, generation, sizes)
            return bool(places) and not any(instance in place.instances for place in places)

    def _find_relatives(self, skeleton: Skeleton, builder: GeneralBuilder) -> _Relatives:
        identity = skeleton, _sort(builder.environment)
        return self._relatives.get_or_make(identity, lambda: _read_relatives(skeleton, builder))[0]


def _outline(instance: Instance) -> Hashable:
    """Returns something that is equal for all regions that are brought into the order of a template alike."""
    return outline_of(instance.region), instance.inputs, instance.outputs


def _sort(environment: Mapping[str, str]) -> Environment:
    return tuple(sorted(environment.items()))


def _find_general(relatives: _Relatives, holes: Holes, generation: Generation) -> FoundGeneral | None:
    """Finds what was made last of all that has a region with this in its holes as an instance."""
    for general, place in reversed(relatives.generals):
        values = general.values_of(holes)
        if values is not None:
            place.enter(generation)
            return FoundGeneral(general, values)
    return None


def _join(
    relatives: _Relatives, instance: Holes, generation: Generation, sizes: Sizes, builder: GeneralBuilder
) -> FoundGeneral | None:
    """Generalizes the place that a region fits best, or makes it the first one of a place of its own."""
    places = _find_places(relatives, generation, sizes)
    known = next((place for place in places if instance in place.instances), None)
    if known is not None:
        known.enter(generation)
        return None
    if not places:
        place = _Place(generation.name, (instance,), generation.function, generation.number)
        _keep_last(relatives.places, place)
        _keep_place(relatives, place, builder)
        return None
    joined = [(_make_family(relatives, (*place.instances, instance)), place) for place in places]
    family, place = min(joined, key=lambda one: len(one[0].variables) - _count_variables(one[1].instances))
    place.enter(generation)
    place.instances = (*place.instances, instance)
    general = GeneralExecutable(family, builder)
    _keep_last(relatives.generals, (general, place))
    _keep_place(relatives, place, builder)
    return FoundGeneral(general, family.general.values[-1])


def _make_family(relatives: _Relatives, instances: Sequence[Holes]) -> Family:
    return make_family([fill(relatives.skeleton, instance) for instance in instances])


def _count_variables(instances: Sequence[Holes]) -> int:
    """Returns how many variables the generalization of regions has."""
    return len({column for column in zip(*instances, strict=True) if len(set(column)) > 1})


def _read_relatives(skeleton: Skeleton, builder: GeneralBuilder) -> _Relatives:
    """Returns what the processes before knew of a skeleton, if there is a store that has it."""
    if builder.store is None or builder.backend.artifact_environment() is None:
        return _Relatives(skeleton)
    relatives = _Relatives(skeleton, skeleton_key(skeleton, builder.environment))
    assert relatives.key is not None
    for kept in read_places(builder.store, relatives.key):
        try:
            check_fits(skeleton, kept.instances)
            place = _Place(kept.function, kept.instances)
            if _count_variables(place.instances):
                general = GeneralExecutable(_make_family(relatives, place.instances), builder)
                relatives.generals.append((general, place))
        except ValueError as error:  # the region can be compiled as it is
            logger.info("sizes that the store has for %s are not used", relatives.key.digest[:12], exc_info=error)
            continue
        relatives.places.append(place)
    return relatives


def _keep_place(relatives: _Relatives, place: _Place, builder: GeneralBuilder) -> None:
    """Has the store know a place, for the processes that come, if there is one and the function has a name there."""
    if relatives.key is None or builder.store is None or not place.name:
        return
    name = template_name(relatives.skeleton.graph, relatives.key)
    keep_place(builder.store, relatives.key, KeptPlace(place.name, place.instances), name)


def _find_places(relatives: _Relatives, generation: Generation, sizes: Sizes) -> list[_Place]:
    """Returns the places that a region may belong to: those of the function that have none of this program."""
    if sizes is Sizes.DYNAMIC:
        return relatives.places
    return [place for place in relatives.places if place.is_open(generation)]


def _keep_last[T](kept: list[T], new: T) -> None:
    """Appends to a list that has no more than so many."""
    kept.append(new)
    del kept[:-_MOST]


def check_general(region: Graph) -> None:
    """Refuses regions that are compiled for their own sizes, whoever compiles them.

    Raises:
        Declined: says why.
    """
    if region.sizes or any(isinstance(type_, NumberType) and type_.python_type != "float" for type_ in region.inputs):
        raise Declined("whole numbers or symbolic sizes among the inputs", Scope.GENERAL)
    if writes_in_place(region):
        raise Declined("in-place effects", Scope.GENERAL)
    if any(op_traits(op.name).random for op in region.ops):
        raise Declined("random numbers", Scope.GENERAL)
    types = [*region.inputs, *(type_ for op in region.ops for type_ in op.outputs)]
    if any(_count_elements(type_) > MOST_ELEMENTS for type_ in types if isinstance(type_, TensorType)):
        raise Declined("a tensor with more elements than a 32-bit index can count", Scope.GENERAL)


def _count_elements(type_: TensorType) -> int:
    return prod(size for size in type_.shape if isinstance(size, int))
