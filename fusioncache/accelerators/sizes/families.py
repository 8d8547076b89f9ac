"""One program at several lengths, as one with numbers to be filled in: nothing is derived for a further length.

Thunder's passes went over the program at two lengths or more, and once more with symbols for sizes, which tells what
they look at. Where all of that comes out the same at another length, Thunder would make the known program with other
numbers. The first two programs of a form may differ in more, as where one has all of a table of which the others have a
part: later ones are tried as well.

A family is stored under the form of its programs, so that a process goes on from it that has seen no length yet. What
the programs read, and what the passes looked at, is compared as for any program. The artifacts are ``reads``, for each
program that is known ``program-0``, ``program-1`` and so on, ``regions-0`` where that is known, and::

    family = what passes looked at, and the sizes of each program: a ``_FamilyOutline``, written by ``ir/codec.py``

The traces are the bytes of programs that are stored themselves, mostly, so that they take no room of their own. What is
filled in from a family is not stored itself: a later process fills it in as well.

What the passes looked at is data. Some of it is decided by code that is not interpreted, as by the library that has a
kernel or has none. A question says what a function is asked about, with expressions for sizes, so that it can be asked
again, also in another process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Annotated, Any

import torch

from fusioncache.accelerators.programs.derivation import KnownProgram
from fusioncache.accelerators.programs.general import (
    FilledProgram,
    GeneralProgram,
    Identify,
    list_templates,
)
from fusioncache.accelerators.programs.text import (
    ProgramText,
    Read,
    TemplateReference,
    decode,
    decode_reads,
    encode,
    encode_reads,
)
from fusioncache.accelerators.sizes.journal import FAMILY_FORMAT, Look
from fusioncache.accelerators.sizes.scaling import scale_sizes
from fusioncache.accelerators.sizes.sizes import (
    COMPARISONS,
    SYMBOLIC,
    Expression,
    Float,
    Integer,
    Number,
    Operation,
    evaluate,
    express,
)
from fusioncache.accelerators.sizes.values import ArgumentSizes, Place
from fusioncache.ir import Key, codec
from fusioncache.ir.errors import Declined, Scope
from fusioncache.observe.record.kept_regions import KeptRegions, decode_regions
from fusioncache.store import Store
from fusioncache.store.entry import FAMILY_SLOTS, is_family
from fusioncache.store.store import WRITE_SECONDS
from fusioncache.thunder_adapter.api import TensorProxy, TraceCtx, devices, dtypes, to_torch_dtype, tracectx

logger = logging.getLogger("fusioncache")

DECIDERS: Mapping[str, str] = MappingProxyType(
    {
        "_fused_sdp_choice": "thunder.executors.utils",
        "can_attend_with_cudnn": "fusioncache.accelerators.attention.executor",
    }
)
"""The functions that decide by sizes, and by what else they are asked about, each with the module that has it."""


@dataclass(frozen=True, slots=True)
class AskedTensor:
    """A tensor that something is decided about.

    Attributes:
        shape: its sizes.
        device: that it is on, as torch writes it.
        dtype: the name that its type has in torch.
        requires_grad: whether it needs a gradient.
    """

    shape: tuple[Expression, ...]
    device: str
    dtype: Annotated[str, re.compile(r"[a-z]\w*")]
    requires_grad: bool


type Asked = AskedTensor | Integer | Float | Number | Operation | bool | float | None
"""What one argument of a question is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that was decided.

    Attributes:
        function: decides: one of ``DECIDERS``.
        args: what it was asked about.
        answer: what it decided, as Python writes it.
    """

    function: Annotated[str, re.compile("|".join(DECIDERS))]
    args: tuple[Asked, ...]
    answer: str

    def ask(self, numbers: Mapping[int, int]) -> str:
        """Returns what is decided where numbers have these values, by their positions.

        Raises:
            ValueError: if no module decides it.
        """
        if self.function not in DECIDERS:
            raise ValueError(f"{self.function} decides nothing")
        return str(decide(getattr(find_home(self.function), self.function), self.args, numbers))


def find_home(decider: str) -> ModuleType:
    """Returns the module of one of ``DECIDERS``, where its users look it up."""
    return import_module(DECIDERS[decider])


def decide(function: Callable[..., Any], args: tuple[Asked, ...], numbers: Mapping[int, int]) -> Any:
    """Returns what a function decides where numbers have these values."""
    with tracectx(TraceCtx()):
        return function(*(_fill(each, numbers) for each in args))


def describe_asked(arg: Any) -> Asked:
    """Returns an argument of a question as data.

    Raises:
        TypeError: if it is of a kind that is not known.
    """
    if isinstance(arg, TensorProxy):
        dtype = str(to_torch_dtype(arg.dtype)).removeprefix("torch.")
        return AskedTensor(tuple(map(express, arg.shape)), arg.device.device_str(), dtype, bool(arg.requires_grad))
    if type(arg) in SYMBOLIC:
        return arg.expression
    if arg is None or type(arg) in (bool, int, float):
        return arg  # type: ignore[no-any-return]
    raise TypeError(f"something is decided about a {type(arg).__name__}")


def _fill(asked: Asked, numbers: Mapping[int, int]) -> Any:
    if isinstance(asked, AskedTensor):
        return _make_proxy(asked, numbers)
    return evaluate(asked, numbers) if isinstance(asked, Number | Operation) else asked


def _make_proxy(asked: AskedTensor, numbers: Mapping[int, int]) -> Any:
    return TensorProxy(
        shape=tuple(evaluate(size, numbers) for size in asked.shape),
        device=devices.to_device(asked.device),
        dtype=dtypes.to_dtype(getattr(torch, asked.dtype)),
        requires_grad=asked.requires_grad,
    )


type Expressions = tuple[Expression, ...]

_NO_SHAPES: Mapping[str, Expressions] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PassJournal:
    """What Thunder's passes did with the sizes of one program.

    Attributes:
        sizes: the place of each argument, and its sizes: numbers of which this is about, and those that may be no
            others.
        looks: comparisons.
        unequal: arguments of operations that would be the same operation if they were equal.
        decisions: of others.
        expressions: each that may be in a final trace or a region, in a fixed order.
        shapes: of tensors with a size that is none of these, by name: operations on them run as a whole.
    """

    sizes: tuple[tuple[Place, tuple[int | Number, ...]], ...]
    looks: tuple[Look, ...]
    unequal: tuple[tuple[Expressions, Expressions], ...]
    decisions: tuple[Decision, ...]
    expressions: Expressions
    shapes: Mapping[str, Expressions] = _NO_SHAPES

    def validate(self) -> None:
        """Checks what types do not say.

        Raises:
            ValueError: if a number is not the size of one argument, or lists differ in length.
        """
        numbers = [size for _, sizes in self.sizes for size in sizes if isinstance(size, Number)]
        used = _find_numbers((self.looks, self.unequal, self.decisions, self.expressions, *self.shapes.values()))
        if len({each.position for each in numbers}) != len(numbers) or not set(used) <= set(numbers):
            raise ValueError("does not have all numbers, each once")
        if any(len(one) != len(other) for one, other in self.unequal):
            raise ValueError("compares lists of two lengths")
        _check_places([place for place, _ in self.sizes])

    def check(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these sizes.

        Raises:
            Declined: if the passes might do something else there, or there is no value of an expression.
        """
        numbers = self.read(arguments)
        try:
            self._check(numbers)
        except ArithmeticError as error:
            raise Declined(str(error), Scope.LENGTH) from error
        return numbers

    def _check(self, numbers: Mapping[int, int]) -> None:
        for look in self.looks:
            left, right = (evaluate(each, numbers) for each in (look.left, look.right))
            if COMPARISONS[look.symbol](left, right) is not look.outcome:
                raise Declined(f"a Thunder pass may do something else: {look}", Scope.LENGTH)
        for one, other in self.unequal:
            if all(evaluate(left, numbers) == evaluate(right, numbers) for left, right in zip(one, other, strict=True)):
                raise Declined("two operations become the same at these sizes", Scope.LENGTH)
        for decision in self.decisions:
            if decision.ask(numbers) != decision.answer:
                raise Declined(f"{decision.function} decides otherwise", Scope.LENGTH)
        for each in self.expressions:
            evaluate(each, numbers)

    def read(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these sizes.

        Raises:
            Declined: if a size is another one that is no number.
        """
        if arguments.keys() != {place for place, _ in self.sizes}:
            raise Declined("there are other arguments", Scope.LENGTH)
        numbers: dict[int, int] = {}
        for place, sizes in self.sizes:
            for size, value in zip(sizes, arguments[place], strict=True):
                if isinstance(size, Number) and value > 1:
                    numbers[size.position] = value
                elif size != value:
                    raise Declined(f"a size is {value}", Scope.LENGTH)
        return numbers


@dataclass(frozen=True, slots=True)
class _FamilyOutline:
    """What is stored of a family beside its programs.

    Attributes:
        passes: what they looked at.
        known: the sizes of the arguments of each program.
    """

    passes: PassJournal
    known: tuple[tuple[tuple[Place, tuple[int, ...]], ...], ...]

    def validate(self) -> None:
        """Checks what types do not say.

        Raises:
            ValueError: if programs have other arguments.
        """
        if any(list(map(_count, each)) != list(map(_count, self.passes.sizes)) for each in self.known):
            raise ValueError("has sizes of other arguments")


def encode_outline(passes: PassJournal, sizes: Sequence[ArgumentSizes]) -> bytes:
    """Returns what passes looked at, and the sizes of the programs that a family is made of. Equal ones are equal.

    Raises:
        ValueError: if there is a number in it that JSON has not.
    """
    outline = _FamilyOutline(passes, tuple(tuple(each.items()) for each in sizes))
    return codec.encode(outline, format=FAMILY_FORMAT)


def decode_outline(content: bytes) -> tuple[PassJournal, tuple[ArgumentSizes, ...]]:
    """Returns what ``encode_outline`` was given.

    Raises:
        ValueError: if this is anything else.
    """
    found = codec.decode(_FamilyOutline, content, "family", format=FAMILY_FORMAT)
    return found.passes, tuple(map(dict, found.known))


def _find_numbers(value: Any) -> Iterator[Number]:
    """Yields the numbers in looks, decisions and expressions."""
    if isinstance(value, Number):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _find_numbers(each)
    elif isinstance(value, Look | Operation):
        yield from _find_numbers((value.left, value.right))
    elif isinstance(value, Decision | AskedTensor):
        yield from _find_numbers(value.args if isinstance(value, Decision) else value.shape)


def _check_places(places: Sequence[Place]) -> None:
    keys = [key for place in places for key in (place if isinstance(place, tuple) else (place,))]
    is_deep = all(len(place) > 1 for place in places if isinstance(place, tuple))
    if len(set(places)) < len(places) or not is_deep or any(isinstance(key, int) and key < 0 for key in keys):
        raise ValueError("does not have arguments, each once")


def _count(sizes: tuple[Place, tuple[Any, ...]]) -> tuple[Place, int]:
    return sizes[0], len(sizes[1])


MOST_KNOWN = 6
"""Of how many programs a family is made. Each tells apart what was equal in all before."""


class Family:
    """What programs of one form have in common.

    Args:
        reads: what they were derived from besides.
        passes: what Thunder's passes look at.
        known: programs that Thunder derived, two or more.

    Attributes:
        reads: as above.
        passes: as above.
        known: the programs that it is made of.
        came: whether it came from another machine.

    Raises:
        Declined: if they differ in more than numbers, or something else may depend on sizes.
    """

    def __init__(self, reads: tuple[Read, ...], passes: PassJournal, known: Sequence[KnownProgram]):
        first, *others = (each.list_placements() for each in known)
        if any(other != first for other in others):
            raise Declined("its collectives are in other places", Scope.LENGTH)
        self.reads = reads
        self.passes = passes
        self.known = tuple(known)
        self.came = False
        self._general = self._generalize(self.known)
        self._digests = list_digests(known[0].text)
        kept = known[0].regions
        self._regions = None if kept is None else decode_regions(kept, None, 0)

    def _generalize(self, known: Sequence[KnownProgram]) -> GeneralProgram:
        programs = [(each.text, self.passes.read(each.sizes)) for each in known]
        return GeneralProgram(programs, self.passes.expressions, self.passes.shapes)

    def is_same(self, other: Family) -> bool:
        """True if another family is of the same programs, whichever of these it knows."""
        return self.reads == other.reads and _forget_places(self.passes) == _forget_places(other.passes)

    def fits(self, sizes: ArgumentSizes) -> bool:
        """True if passes would do the same for arguments of these sizes."""
        try:
            self.passes.check(sizes)
        except Declined as declined:
            declined.require(Scope.LENGTH)
            return False
        return True

    def learn(self, program: KnownProgram) -> bool:
        """Takes one more program, which tells more of what each number is; returns whether it did.

        One for which passes might have done something else is no program of this family.

        Raises:
            Declined: if it differs in more than numbers.
        """
        is_known = any(each.sizes == program.sizes for each in self.known)
        if is_known or len(self.known) >= MOST_KNOWN or not self.fits(program.sizes):
            return False
        known = (*self.known, program)
        self._general, self.known = self._generalize(known), known
        return True

    def prepare(self) -> None:
        """Makes what a program is filled into, which takes longer than to fill one in: Python compiles it.

        Raises:
            Declined: if a number is where none can be filled in.
        """
        self._general.prepare()

    def fill(self, sizes: ArgumentSizes, identify: Identify) -> tuple[FilledProgram, KeptRegions | None]:
        """Returns the program for arguments of these sizes, and what is on record of its regions, if that is known.

        Raises:
            Declined: if Thunder's passes might do something else.
            Declined: if a number is not known.
        """
        filled = self._general.fill(self.passes.check(sizes), identify)
        return filled, self._fill_regions(filled.digests)

    def fill_templates(self, length: int, identify: Identify) -> Mapping[str, TemplateReference]:
        """Returns the templates of the program at a length, by names as of ``GeneralProgram.fill_templates``.

        Raises:
            Declined: if the sizes of the arguments do not follow from the length, or as for ``fill``.
        """
        sizes = scale_sizes(self.known[0].sizes, self.known[1].sizes, length)
        return self._general.fill_templates(self.passes.check(sizes), identify)[0]

    def _fill_regions(self, digests: Sequence[str]) -> KeptRegions | None:
        """Returns what is on record of regions, with the digests of other templates."""
        kept = self._regions
        if kept is None:
            return None
        others: Mapping[str | None, str] = dict(zip(self._digests, digests, strict=True))
        regions = (replace(region, digest=others.get(region.digest, region.digest)) for region in kept.regions)
        return replace(kept, regions=tuple(regions))


def _forget_places(passes: PassJournal) -> PassJournal:
    """Returns what passes looked at without the files in which they are here."""
    return replace(passes, looks=tuple(replace(look, place="") for look in passes.looks))


def list_digests(program: ProgramText) -> list[str]:
    """Returns the digests of a program's templates, in the order in which they are called first."""
    templates = program.templates()
    return [templates[name].digest for name in list_templates(program)]


_FAMILY, _READS, _PROGRAM, _REGIONS = "family", "reads", "program-", "regions-"


def find_families(store: Store, form: Key) -> tuple[Family, ...]:
    """Returns the families that are stored for a form. What cannot be read is removed. Never raises.

    A remote is asked for what is not here, up to the first slot that is free there, too.
    """
    return tuple(family for _, family in _list_families(store, form, asks_remote=True))


def list_stored_families(store: Store) -> Iterator[Family]:
    """Yields all families that are stored. What cannot be read is removed."""
    forms = {summary.digest: summary.backend for summary in store.entries() if is_family(summary.backend)}
    for digest, slot in forms.items():
        entry = store.entry(digest, slot)
        if entry is not None:
            yield from (family for _, family in _list_families(store, Key(digest, entry.text, ())))


def keep_family(store: Store, form: Key, family: Family, name: str) -> bool:
    """Keeps a family, in the stead of what is stored of it. If all slots are taken, the oldest family goes.

    One that came from another machine stays as it came, whatever this process has learned of it: what would be stored
    has programs of that machine without its signature, and would outlive the revocation of its key.

    Args:
        store: where it goes.
        form: of its programs.
        family: learns what others have stored of it.
        name: of the model, for people.

    Returns:
        Whether it is stored.

    Raises:
        ValueError: if something in it cannot be written.
    """
    with store.take_turn(form, FAMILY_SLOTS[0], WRITE_SECONDS):
        found = dict(_list_families(store, form))
        same = [slot for slot, other in found.items() if other.is_same(family)]
        if family.came or any(found[slot].came for slot in same):
            return bool(same)
        for slot in same:
            _learn_all(family, found[slot].known)
        free = [slot for slot in FAMILY_SLOTS if slot not in found]
        slot = next(iter((*same, *free)), None) or store.find_oldest(form, found)
        artifacts = encode_family(family)
        store.remove(form, slot)
        return store.save(form, slot, artifacts, name=name)


def forget_family(store: Store, form: Key, family: Family) -> None:
    """Removes what is stored of a family."""
    with store.take_turn(form, FAMILY_SLOTS[0], WRITE_SECONDS):
        for slot, other in _list_families(store, form):
            if other.is_same(family):
                store.remove(form, slot)


def encode_family(family: Family) -> Mapping[str, bytes]:
    """Returns a family as artifacts. Equal ones have equal bytes.

    Raises:
        ValueError: if something in it cannot be written.
    """
    outline = encode_outline(family.passes, [each.sizes for each in family.known])
    artifacts = {_FAMILY: outline, _READS: encode_reads(family.reads)}
    for number, program in enumerate(family.known):
        artifacts[f"{_PROGRAM}{number}"] = encode(program.text)
        if program.regions is not None:
            artifacts[f"{_REGIONS}{number}"] = program.regions
    return artifacts


def decode_family(artifacts: Mapping[str, bytes]) -> Family:
    """Returns the family that was encoded.

    Raises:
        ValueError: if these are the artifacts of none.
    """
    try:
        passes, sizes = decode_outline(artifacts[_FAMILY])
        if not 2 <= len(sizes) <= MOST_KNOWN:
            raise ValueError(f"it is of {len(sizes)} programs")
        known = [
            KnownProgram(decode(artifacts[f"{_PROGRAM}{number}"]), each, artifacts.get(f"{_REGIONS}{number}"))
            for number, each in enumerate(sizes)
        ]
        return Family(decode_reads(artifacts[_READS]), passes, known)
    except ValueError:
        raise
    except Exception as error:  # programs that are none of one family
        raise ValueError(f"no family: {error!r}") from error


def _list_families(store: Store, form: Key, *, asks_remote: bool = False) -> Iterator[tuple[str, Family]]:
    for slot in FAMILY_SLOTS:
        artifacts = store.peek(form, slot, asks_remote=asks_remote)
        if artifacts is None:
            asks_remote = False
            continue
        try:
            family = decode_family(artifacts)
            family.came = artifacts.came
            yield slot, family
        except ValueError as error:
            logger.info("a stored family does not decode", exc_info=error)
            store.discard(form, slot, f"a stored family that does not decode: {type(error).__name__}")


def _learn_all(family: Family, known: tuple[KnownProgram, ...]) -> None:
    for program in known:
        try:
            family.learn(program)
        except Declined as error:  # then it is left to what this process has seen
            error.require(Scope.LENGTH)
            logger.info("a stored program is of no family here: %s", error)
