"""Finds residual streams: sums that several regions of a trace recompute, each from the same terms.

Values copied by rematerialization keep one name throughout a trace, so sums with equal names are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fusioncache.ir import AS_WRITTEN, Arithmetic, Graph, Op, Ref, Region, TensorType, map_arg, operands
from fusioncache.ir.ops import ADD, bits_depend_on_kernel, op_traits

_MANY = ""


@dataclass(frozen=True, slots=True)
class FusedCall:
    """A fused call of a trace.

    Attributes:
        position: its index in the trace.
        region: its operations; its outputs are the values that it defines.
        names: of the region's values, by their numbers.
        arithmetic: of the compiler that makes a kernel of it.
    """

    position: int
    region: Region
    names: tuple[str, ...]
    arithmetic: Arithmetic = AS_WRITTEN


@dataclass(frozen=True, slots=True)
class Sum:
    """A partial sum in the form that is stored between kernels: in a dtype in which the regions themselves compute it.

    Attributes:
        name: of the value.
        parent: the sum that it starts from; None for the first one.
        terms: the values that are added, in order; the first sum starts from the first of them.
        dtype: Thunder's name of its dtype.
        size: of the sum, in bytes.
        term_size: of all terms together, in bytes.
        direct: whether the terms are added to the stored parent, without a conversion between the adds.
    """

    name: str
    parent: str | None
    terms: tuple[str, ...]
    dtype: str
    size: int
    term_size: int
    direct: bool = True


@dataclass(slots=True)
class _Node:
    """An add, a conversion or an identity on the way from region inputs to a sum, the same in every region.

    ``parents``: operands of an add that are sums themselves in some region. ``user``: the conversion or identity that
    is its only user in all regions; None for no user, ``_MANY`` for other users.
    """

    signature: tuple[object, ...]
    adds: bool
    operands: tuple[str, ...]
    type: TensorType
    calls: int = 0
    parents: set[str] = field(default_factory=set)
    user: str | None = None


class Sums:
    """Collects the sums in the regions of a trace. Linear in their ops."""

    def __init__(self, around: OutsideValues):
        self._around = around
        self._inputs: dict[str, TensorType] = {}
        self._other: set[str] = set()  # computed from products and the like, or in two ways
        self._nodes: dict[str, _Node] = {}

    def read_call(self, call: FusedCall) -> None:
        """Reads a region."""
        region, names, types = call.region, call.names, call.region.types
        # For each value: None if it cannot be part of a sum, else whether it is a sum.
        kinds: list[bool | None] = [self._kind_of_input(region, names, number) for number in range(region.first_result)]
        for op, first in region.results():
            kind = self._kind(op, kinds, types)
            if kind is None or names[first] in self._around.defined or names[first] in self._around.written:
                kinds += [None] * len(op.outputs)
                self._other.update(names[first : first + len(op.outputs)])
            else:
                kinds.append(kind)
                self._define(op, names, first, kinds)
            self._use(op, names, first)
        for output in region.outputs:
            if names[output] in self._nodes:
                self._nodes[names[output]].user = _MANY

    def _kind_of_input(self, region: Graph, names: Sequence[str], number: int) -> bool | None:
        type_ = region.inputs[number] if number < len(region.inputs) else None
        if not isinstance(type_, TensorType) or not _is_static(type_) or names[number] in self._around.written:
            return None
        self._inputs[names[number]] = type_
        return False

    def _kind(self, op: Op, kinds: list[bool | None], types: Sequence[object]) -> bool | None:
        """Returns True for an op whose result is a sum, False for a converted region input, None for any other."""
        if op_traits(op.name).conversion and op.args and isinstance(op.args[0], Ref) and _is_static(op.outputs[0]):
            return kinds[op.args[0].index]
        match op:
            case Op(name, (Ref(left), Ref(right)), (result,), ()) if name == ADD and _is_static(result):
                both = kinds[left], kinds[right]
                if None not in both and both != (True, True) and types[left] == types[right] == result:
                    return True
        return None

    def _define(self, op: Op, names: Sequence[str], first: int, kinds: list[bool | None]) -> None:
        used = [index for _, index in operands(op)]
        # References by name instead of number, as names are the same in every region.
        args = tuple(map_arg(arg, lambda index: Ref(names[index])) for arg in op.args)  # type: ignore[arg-type]
        signature = (op.name, args, op.outputs, op.kwargs)
        type_ = op.outputs[0]
        assert isinstance(type_, TensorType)
        node = self._nodes.get(names[first])
        if node is None:
            node = _Node(signature, op.name == ADD, tuple(names[index] for index in used), type_)
            self._nodes[names[first]] = node
        elif node.signature != signature:
            self._other.add(names[first])
        node.calls += 1
        node.parents.update(names[index] for index in used if kinds[index])

    def _use(self, op: Op, names: Sequence[str], first: int) -> None:
        user = names[first] if op_traits(op.name).conversion else _MANY
        for _, index in operands(op):
            node = self._nodes.get(names[index])
            if node is not None:
                node.user = user if node.user in (None, user) else _MANY

    def sums(self) -> Iterator[Sum]:
        """Yields the sums, each after its parent."""
        valid = self._find_valid()
        stored = {name: self._find_stored(name, valid) for name in valid if self._nodes[name].adds}
        sums = set(stored.values())
        dropped: set[str] = set()
        sources_of: dict[str, str] = {}
        for name, sum_ in stored.items():
            sources = [self._source(operand, sums, sources_of) for operand in self._nodes[name].operands]
            parents = [source for source in sources if source in sums]
            if len(parents) > 1 or not dropped.isdisjoint(parents):
                dropped.add(sum_)
                continue
            terms = tuple(source for source in sources if source not in sums)
            type_ = self._nodes[sum_].type
            term_size = sum(self._inputs[term].bytes for term in terms)
            direct = not parents or (parents[0] in stored and parents[0] in self._nodes[name].operands)
            yield Sum(sum_, parents[0] if parents else None, terms, type_.dtype, type_.bytes, term_size, direct)

    def count_recomputed(self, sums: Iterable[Sum]) -> int:
        """Returns how many of these sums several calls compute."""
        return sum(self._nodes[each.name].calls > 1 for each in sums)

    def _find_valid(self) -> dict[str, None]:
        """Returns the names that have the same value everywhere, in the order of their first region."""
        valid: dict[str, None] = {}
        for name, node in self._nodes.items():
            known = all(operand in valid for operand in node.operands if operand in self._nodes)
            if known and name not in self._other and len(node.parents) < 2:
                valid[name] = None
        return valid

    def _find_stored(self, name: str, valid: Collection[str]) -> str:
        """Returns the stored form of an add: itself, or the value to which all its uses convert it first."""
        while True:
            node = self._nodes[name]
            user = node.user
            if not user or user not in valid or self._nodes[user].type.bytes > node.type.bytes:
                return name
            name = user

    def _source(self, name: str, sums: Collection[str], known: dict[str, str]) -> str:
        """Returns the sum or region input that an operand is, or is converted from, and stores it in ``known``."""
        way = []
        while name in self._nodes and name not in sums and name not in known:
            way.append(name)
            name = self._nodes[name].operands[0]
        source = known.get(name, name)
        known.update(dict.fromkeys(way, source))
        return source


def _is_static(type_: object) -> bool:
    return isinstance(type_, TensorType) and not any(isinstance(size, Ref) for size in type_.shape)


FEWEST_SUMS = 3
"""How many sums of a stream must be computed twice at least. With fewer there is hardly anything to save."""


@dataclass(frozen=True, slots=True)
class Use:
    """A sum that the call at this position uses, and not only for the next sum."""

    position: int
    sum: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Sums that start from one another.

    Attributes:
        head: the value that the first sum starts from.
        sums: each after its parent. Several may have the same parent.
        uses: in the order of the trace.
        idle: the positions of the calls that compute some of the sums without using them.
        varies: whether one of the calls that use a sum may compute other bits if the sum is an input.
    """

    head: str
    sums: tuple[Sum, ...]
    uses: tuple[Use, ...]
    idle: tuple[int, ...] = ()
    varies: bool = False


@dataclass(frozen=True, slots=True)
class OutsideValues:
    """The values that the rest of a trace, outside of its fused calls, defines or writes.

    Attributes:
        defined: names of values that are defined outside of the calls.
        written: names of values that are written in place.
    """

    defined: Collection[str] = frozenset()
    written: Collection[str] = frozenset()


def streams_of(calls: Sequence[FusedCall], around: OutsideValues = OutsideValues()) -> tuple[Stream, ...]:
    """Returns the residual streams of a trace. Linear in the ops of its regions.

    The operands of a sum are region inputs, conversions of them, and at most one other sum: a compiler can contract
    none of them with the add into one rounding. A value that some region computes differently, or from a product, is
    not a sum.

    Args:
        calls: the fused calls, in the order of the trace.
        around: the rest of the trace.
    """
    values = Sums(around)
    for call in calls:
        values.read_call(call)
    families = [f for f in _families(values.sums()) if values.count_recomputed(f) >= FEWEST_SUMS]
    home = {sum_.name: number for number, family in enumerate(families) for sum_ in family}
    uses: list[list[Use]] = [[] for _ in families]
    idle: list[list[int]] = [[] for _ in families]
    varying: set[int] = set()
    for call in calls if families else ():
        wanted = list(_list_uses(call, home))
        for name in wanted:
            uses[home[name]].append(Use(call.position, name))
        results = call.names[call.region.first_result :]
        inside = {home[name] for name in results if name in home}
        for number in inside - {home[name] for name in wanted}:
            idle[number].append(call.position)
        if inside and bits_depend_on_kernel(call.region, call.arithmetic):
            varying |= inside
    return tuple(
        Stream(family[0].terms[0], tuple(family), tuple(uses[number]), tuple(idle[number]), number in varying)
        for number, family in enumerate(families)
        if uses[number]
    )


def _families(sums: Iterable[Sum]) -> list[list[Sum]]:
    """Returns the sums, grouped by the first sum of their chain."""
    root: dict[str, str] = {}
    families: dict[str, list[Sum]] = {}
    for sum_ in sums:
        root[sum_.name] = root[sum_.parent] if sum_.parent else sum_.name
        families.setdefault(root[sum_.name], []).append(sum_)
    return list(families.values())


def _list_uses(call: FusedCall, sums: Collection[str]) -> Iterator[str]:
    """Yields the sums that a call computes and uses, except those used for other sums only."""
    producers: list[Op | None] = [None] * call.region.first_result
    for op in call.region.ops:
        producers += [op] * len(op.outputs)
    seen: set[int] = set()
    stack = list(call.region.outputs)
    while stack:
        value = stack.pop()
        producer = producers[value]
        if producer is None or value in seen:
            continue
        seen.add(value)
        if call.names[value] in sums:
            yield call.names[value]
        else:
            stack.extend(index for _, index in operands(producer))
