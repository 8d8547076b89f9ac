"""Regions that differ only in sizes and numbers, and the general functions that they share, in this process and later.

For each skeleton the store has the sizes and numbers of its regions, so that a later process generalizes with these. If
the compiler rejects such regions, it has the pieces that run in their place. These entries have no code, and cannot
make a result wrong: each process fills the holes of its own skeleton, decides itself if a region is an instance of the
generalization, and cuts a rejected region itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fusioncache.backends.api import Backend, GeneralFunction, Run
from fusioncache.cache.executable import Builder, BuiltFunction, Task
from fusioncache.ir import (
    Declined,
    GeneralInstance,
    GeneralRegion,
    Graph,
    Key,
    NumberType,
    Scope,
    TensorType,
    Value,
    codec,
    is_declined,
)
from fusioncache.ir.ops import op_traits, writes_in_place
from fusioncache.ir.template import ArgumentLayouts
from fusioncache.process import forks
from fusioncache.process.forks import LruMap
from fusioncache.process.settings import SIZES
from fusioncache.process.warning import logger
from fusioncache.store import Store
from fusioncache.store.entry import SIZES_SLOT
from fusioncache.store.store import WRITE_SECONDS
from fusioncache.template.generalization import RegionFamily, fit_holes, make_family
from fusioncache.template.key import general_key, graph_key, template_name
from fusioncache.template.skeleton import Skeleton, fill, skeleton_of, take_holes
from fusioncache.template.strides import lay_out_alike


class Sizes(Enum):
    """When regions that differ only in sizes and numbers share one compilation.

    ``AUTO``: from the second program of a function on, if an earlier program of the function has a similar region.
    ``DYNAMIC``: always. ``STATIC``: never.
    """

    AUTO = "auto"
    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True)
class Generation:
    """One program of a function: Thunder's result for one kind of input.

    Attributes:
        function: represents the function; compared by identity.
        number: counts the programs of the function.
        name: the function's name, by which later processes recognize it; empty if it has none.
    """

    function: object
    number: int
    name: str = ""


def choose_sizes(sizes: str | None) -> Sizes:
    """Returns when regions share a compilation: the option of ``FusionCache``, or if that is None, the environment's.

    Raises:
        ValueError: if the option or the environment is none of auto, static and dynamic.
    """
    if sizes is None:
        return Sizes(SIZES.get_text() or Sizes.AUTO.value)
    if sizes not in [known.value for known in Sizes]:
        raise ValueError(f"sizes must be 'auto', 'static' or 'dynamic', got {sizes!r}")
    return Sizes(sizes)


FORMAT = 3
_SIZES = "sizes"
_MOST_STORED = 64
"""How many places are stored for one skeleton: the newest."""

Holes = tuple[Value, ...]
"""The contents of a region's holes, in order."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """Regions of several programs that were generalized together, or a single region so far.

    Attributes:
        function: the name of the function of those programs: see ``Generation``.
        instances: the regions.
    """

    function: str
    instances: tuple[Holes, ...]

    def validate(self) -> None:
        """Raises ``ValueError`` if there are no regions."""
        if not self.instances:
            raise ValueError("has no regions")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a rejected region: the operations from ``start`` up to, but not including, ``stop``.

    Attributes:
        is_compiled: whether it is compiled; otherwise torch runs its operations.
        layouts: of its arguments at its first run.
    """

    start: int
    stop: int
    is_compiled: bool
    layouts: ArgumentLayouts


@dataclass(frozen=True, slots=True)
class Rejection:
    """A region that a compiler rejects, the compiler's reason, and the pieces that replaced it at some sizes."""

    reason: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class StoredRegions:
    """The stored regions of one skeleton: their places, and their rejection or None."""

    places: tuple[StoredGroup, ...] = ()
    rejection: Rejection | None = None


def read_regions(store: Store, key: Key) -> StoredRegions:
    """Returns the stored regions of a skeleton. Removes an entry that does not decode. Never raises."""
    return store.read(key, SIZES_SLOT, _decode_regions, "sizes that do not decode") or StoredRegions()


def _decode_regions(artifacts: Mapping[str, bytes]) -> StoredRegions:
    return codec.decode(StoredRegions, artifacts.get(_SIZES, b""), "sizes", format=FORMAT)


def store_regions(store: Store, key: Key, new: StoredRegions, name: str) -> None:
    """Adds regions to those stored for a skeleton, and removes places that new ones include. Never raises.

    Args:
        store: has the regions.
        key: of the skeleton.
        new: the new regions.
        name: a readable name for the entry.
    """
    with store.take_turn(key, SIZES_SLOT, WRITE_SECONDS):
        known = read_regions(store, key)
        places = [place for place in new.places if not any(_covers(other, place) for other in known.places)]
        others = [other for other in known.places if not any(_covers(place, other) for place in places)]
        found = StoredRegions((*others, *places)[-_MOST_STORED:], known.rejection or new.rejection)
        if found != known:
            store.replace(key, SIZES_SLOT, {_SIZES: codec.encode(found, format=FORMAT)}, name=name)


def _covers(place: StoredGroup, other: StoredGroup) -> bool:
    return place.function == other.function and set(place.instances).issuperset(other.instances)


@dataclass(frozen=True, slots=True)
class ServedGeneral:
    """A function for any sizes, applied to one region.

    Attributes:
        run: computes the region.
        built: the function for any sizes.
        source: the graph that it was compiled from.
        is_new: whether it was compiled or loaded for this region.
        is_first: whether no earlier function was derived from the same code.
    """

    run: Run
    built: BuiltFunction[Any]
    source: Graph
    is_new: bool = False
    is_first: bool = True


def general_task(
    backend: Backend, general: GeneralRegion, values: Sequence[Value], layout: Hashable
) -> Task[GeneralFunction]:
    """Returns the task to compile a region for any sizes, using the arguments of one of its instances.

    Args:
        backend: compiles.
        general: the region, with the positions of its variables.
        values: the variables' values in that instance.
        layout: of the arguments, as ``Backend.general_layout`` returns it.
    """
    return Task(
        general.graph,
        key=lambda environment: general_key(general.graph, environment, repr(layout)),
        compile=lambda args: backend.persist_general(general, args, values).run,
        persist=lambda args: backend.persist_general(general, args, values),
        load=lambda artifacts, args: BuiltFunction(backend.load_general(artifacts, general, args)),
    )


class GeneralExecutable:
    """The functions for any sizes of a region, one for each kind of argument layout.

    Args:
        family: the regions of one generalization.
        builder: compiles or loads.

    Attributes:
        family: as given.
    """

    def __init__(self, family: RegionFamily, builder: Builder):
        self.family = family
        self._builder = builder
        self._functions: dict[Hashable, BuiltFunction[GeneralFunction] | str] = {}
        self._derived: set[Hashable] = set()
        self._seen: tuple[ArgumentLayouts, ...] = ()
        self._lock = forks.lock()

    def note_layouts(self, layouts: ArgumentLayouts) -> None:
        """Notes the layouts of the arguments of a call, for predictions at other sizes."""
        if layouts not in self._seen:
            self._seen = (*self._seen, layouts)[-_MOST_SEEN:]

    def correct_layouts(self, layouts: ArgumentLayouts, graph: Graph) -> list[ArgumentLayouts]:
        """Returns predicted layouts of arguments, or those of earlier calls at other sizes if all of these differ.

        Args:
            layouts: as predicted.
            graph: with the new sizes.
        """
        seen = [lay_out_alike(each, graph) for each in self._seen]
        known = [each for each in dict.fromkeys(seen) if each is not None]
        return [layouts] if layouts in known or not known else known

    def serve(self, args: Sequence[Any], layouts: ArgumentLayouts, values: Sequence[Value]) -> ServedGeneral:
        """Returns the function for the arguments of an instance.

        Args:
            args: tensors, as the region's inputs.
            layouts: of these.
            values: of the region's variables.

        Raises:
            Declined: if there is no such function.
            Exception: any other error of the backend.
        """
        least = self._builder.backend.find_least_size()
        if any(isinstance(value, int) and value < least for value in values):
            raise Declined(f"a size below {least}", Scope.GENERAL)
        layout = self._builder.backend.general_layout(layouts)
        with self._lock:
            is_new = layout not in self._functions
            if is_new:
                self._functions[layout] = self._build(args, layout, values)
            built = self._functions[layout]
        if isinstance(built, str):
            raise Declined(built, Scope.GENERAL)
        return ServedGeneral(built.run(args, values), built, self.family.general.graph, is_new)

    def note_derived(self, layouts: ArgumentLayouts) -> bool:
        """Notes that code for one size was derived. Returns whether it is the first for this kind of layout."""
        layout = self._builder.backend.general_layout(layouts)
        with self._lock:
            is_first = layout not in self._derived
            self._derived.add(layout)
        return is_first

    def is_ready(self, layouts: ArgumentLayouts) -> bool:
        """True if there is a function for this kind of layout, even one built with other sizes."""
        return isinstance(self._functions.get(self._builder.backend.general_layout(layouts)), BuiltFunction)

    def _build(
        self, args: Sequence[Any], layout: Hashable, values: Sequence[Value]
    ) -> BuiltFunction[GeneralFunction] | str:
        """Returns the built function, or the reason why there is none, so that it is not built again.

        The reason is a string, because a stored error would keep its traceback's frames alive, with all their tensors.
        """
        try:
            return self._builder.build(general_task(self._builder.backend, self.family.general, values, layout), args)
        except Exception as error:
            if is_declined(error, Scope.GENERAL):
                return error.reason
            logger.info("nothing is compiled for any sizes", exc_info=error)
            return f"compile failed: {type(error).__name__}"


_MOST_SEEN = 4
"""How many layouts of earlier calls of a general executable are noted: the newest."""
_MOST = 64
"""How many places, and how many generalizations, of one skeleton are stored in memory."""
MOST_ELEMENTS = 2**31 - 1
"""The largest number of elements of a tensor that a compiler can count in 32 bits for any sizes."""

Environment = tuple[tuple[str, str], ...]
"""The ingredients that a backend's compilations depend on beside the graph."""


@dataclass(slots=True)
class _Place:
    """Regions with one skeleton, one from each of several programs, that are generalized together.

    Attributes:
        name: of the function of these programs.
        instances: the holes of the regions that were not instances of the earlier ones.
        function: the function in this process; None until one of its regions is added here.
        last: the number of the last program with an instance, or None.
    """

    name: str
    instances: tuple[Holes, ...]
    function: object | None = None
    last: int | None = None

    def is_of(self, generation: Generation) -> bool:
        """True if this place has regions of this program's function."""
        if self.function is None:
            return bool(self.name) and self.name == generation.name
        return self.function is generation.function

    def enter(self, generation: Generation) -> None:
        """Notes that this program has an instance."""
        if self.function is None and self.name == generation.name:
            self.function = generation.function
        if self.function is generation.function:
            self.last = max(generation.number, -1 if self.last is None else self.last)


@dataclass(slots=True)
class _Relatives:
    """The places, generalizations and rejection of one skeleton, under the settings of one environment."""

    skeleton: Skeleton
    key: Key | None = None
    rejection: Rejection | None = None
    places: deque[_Place] = field(default_factory=lambda: deque(maxlen=_MOST))
    generals: deque[tuple[GeneralExecutable, _Place]] = field(default_factory=lambda: deque(maxlen=_MOST))


@dataclass(frozen=True, slots=True)
class FoundGeneral:
    """A general executable that may serve a region.

    Attributes:
        executable: the general executable.
        values: the variables' values for the region.
    """

    executable: GeneralExecutable
    values: tuple[Value, ...]

    @property
    def instance(self) -> GeneralInstance:
        """The region, as an instance of the general one."""
        return GeneralInstance(self.executable.family.general, self.values)


class GeneralRegions:
    """The compiled regions by skeleton, and the functions that several of them share.

    With a store, regions of earlier processes are included.

    Args:
        capacity: how many skeletons are stored in memory. The least recently used is removed first.
    """

    def __init__(self, capacity: int):
        self._relatives: LruMap[tuple[Skeleton, Environment], _Relatives] = LruMap(capacity)
        self._lock = forks.lock()

    def clear(self) -> None:
        """Removes all of them. Users of compiled functions keep these, and stored places stay in the store."""
        self._relatives.clear()

    def find(
        self, region: Graph, generation: Generation | None, sizes: Sizes, builder: Builder
    ) -> FoundGeneral | Rejection | None:
        """Returns the general executable that may serve a region, or its rejection, or None.

        With a generation, a region that is neither rejected nor served yet is added to its place.

        Args:
            region: with inputs and outputs in the order of its template.
            generation: the program that the region belongs to; None to add nothing.
            sizes: which regions it may be generalized with.
            builder: builds functions for any sizes.
        """
        with self._lock:
            skeleton, holes = take_holes(region)
            relatives = self._find_relatives(skeleton, builder)
            if relatives.rejection is not None:
                return relatives.rejection
            found = _find_general(relatives, holes, generation)
            if found is None and generation is not None:
                return _join(relatives, holes, generation, sizes, builder)
            return found

    def reject(self, region: Graph, rejection: Rejection, builder: Builder) -> None:
        """Notes that the compiler rejects a region, also for later processes. The first rejection stays."""
        with self._lock:
            relatives = self._find_relatives(skeleton_of(region), builder)
            if relatives.rejection is None:
                relatives.rejection = rejection
                _store_regions(relatives, StoredRegions(rejection=rejection), builder)

    def _find_relatives(self, skeleton: Skeleton, builder: Builder) -> _Relatives:
        identity = skeleton, tuple(sorted(builder.environment.items()))
        return self._relatives.get_or_make(identity, lambda: _read_relatives(skeleton, builder))[0]


def _find_general(relatives: _Relatives, holes: Holes, generation: Generation | None) -> FoundGeneral | None:
    """Returns the newest general executable with the region of these holes as an instance, or None."""
    for general, place in reversed(relatives.generals):
        values = fit_holes(general.family.generalization, holes)
        if values is not None:
            if generation is not None:
                place.enter(generation)
            return FoundGeneral(general, values)
    return None


def _join(
    relatives: _Relatives, instance: Holes, generation: Generation, sizes: Sizes, builder: Builder
) -> FoundGeneral | None:
    """Generalizes the place that a region fits best, or adds a new place with the region."""
    shares_all = sizes is Sizes.DYNAMIC
    places = [place for place in relatives.places if shares_all or place.is_of(generation)]
    known = next((place for place in places if instance in place.instances), None)
    if known is not None:  # a region is requested when its trace is rewritten, and again when it is called
        known.enter(generation)
        return None
    places = [place for place in places if shares_all or place.last != generation.number]
    if not places:
        place = _Place(generation.name, (instance,), generation.function, generation.number)
        relatives.places.append(place)
        _store_place(relatives, place, builder)
        return None
    skeleton = relatives.skeleton
    joined = [(make_family(_fill_each(skeleton, (*place.instances, instance))), place) for place in places]
    family, place = min(joined, key=lambda one: len(one[0].general.places) - _count_variables(one[1].instances))
    place.enter(generation)
    place.instances = (*place.instances, instance)
    general = GeneralExecutable(family, builder)
    relatives.generals.append((general, place))
    _store_place(relatives, place, builder)
    return FoundGeneral(general, family.general.values[-1])


def _fill_each(skeleton: Skeleton, instances: Sequence[Holes]) -> list[Graph]:
    return [fill(skeleton, instance) for instance in instances]


def _count_variables(instances: Sequence[Holes]) -> int:
    """Returns how many variables the generalization of regions has."""
    return len({column for column in zip(*instances, strict=True) if len(set(column)) > 1})


def _read_relatives(skeleton: Skeleton, builder: Builder) -> _Relatives:
    """Returns the places and generalizations that the store has for a skeleton; none without a store."""
    if builder.store is None:
        return _Relatives(skeleton)
    relatives = _Relatives(skeleton, graph_key(skeleton, builder.environment))
    assert relatives.key is not None
    stored = read_regions(builder.store, relatives.key)
    relatives.rejection = stored.rejection
    for kept in stored.places:
        try:
            regions = _fill_each(skeleton, kept.instances)  # raises for values that no region has in its holes
            place = _Place(kept.function, kept.instances)
            if _count_variables(place.instances):
                relatives.generals.append((GeneralExecutable(make_family(regions), builder), place))
        except ValueError as error:  # the region can be compiled as it is
            logger.info("sizes that the store has for %s are not used", relatives.key.digest[:12], exc_info=error)
            continue
        relatives.places.append(place)
    return relatives


def _store_place(relatives: _Relatives, place: _Place, builder: Builder) -> None:
    """Stores a place for later processes, if its function has a name."""
    if place.name:
        _store_regions(relatives, StoredRegions((StoredGroup(place.name, place.instances),)), builder)


def _store_regions(relatives: _Relatives, new: StoredRegions, builder: Builder) -> None:
    """Stores regions for later processes, if there is a store."""
    if relatives.key is not None and builder.store is not None:
        store_regions(builder.store, relatives.key, new, template_name(relatives.skeleton, relatives.key))


def find_general_obstacle(region: Graph) -> str | None:
    """Returns why every compiler compiles a region for its own sizes only; None if it may be compiled for any."""
    if region.sizes or any(isinstance(type_, NumberType) and type_.python_type != "float" for type_ in region.inputs):
        return "whole numbers or symbolic sizes among the inputs"
    if writes_in_place(region):
        return "in-place effects"
    if any(op_traits(op.name).random for op in region.ops):
        return "random numbers"
    if any(type_.elements > MOST_ELEMENTS for type_ in region.types if isinstance(type_, TensorType)):
        return "a tensor with more elements than a 32-bit index can count"
    return None
