"""Families: one program for several lengths, with numbers to fill in, so that Thunder derives no further length.

Thunder's passes ran on the program at two lengths or more, and once more with symbols for sizes, which records their
comparisons of sizes as guards. If all guards hold at another length, Thunder would make the same program with other
numbers. The first two programs of a form may differ in more than numbers, as when one uses a whole table and the others
a part of it: then later programs are tried.

A family is stored under the form of its programs, so that a process can fill in its first length. The reads of the
programs are compared as for any program, and the guards are checked. The artifacts are ``reads``, ``program-0``,
``program-1`` and so on for the known programs, ``regions-0`` and so on where records of regions exist, and::

    family = the guards of the passes and the sizes of each program: a ``_FamilyOutline``, written by ``ir/codec.py``

Most of these programs are also stored on their own, with the same bytes, so that the traces take no extra space.
Programs that are filled in are not stored: a later process fills them in as well.

The guards are data. Some are decisions of code that is not interpreted, such as whether a library has a kernel. A
decision stores the function's arguments, with expressions for sizes, so that it can be made again in any process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType
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
from fusioncache.accelerators.sizes.journal import FAMILY_FORMAT, SizeGuard
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
from fusioncache.observe.record.region_codec import ProgramRecords
from fusioncache.process.warning import logger
from fusioncache.store import Store, StoredArtifacts
from fusioncache.store.entry import FAMILY_SLOTS, is_family
from fusioncache.store.store import WRITE_SECONDS
from fusioncache.thunder_adapter.api import TensorProxy, TraceCtx, devices, dtypes, to_torch_dtype, tracectx

DECIDERS: Mapping[str, str] = MappingProxyType(
    {
        "_fused_sdp_choice": "thunder.executors.utils",
        "can_attend_with_cudnn": "fusioncache.accelerators.attention.executor",
    }
)
"""The functions that decide by sizes and other properties of arguments, with the modules where callers look them up."""


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """A tensor argument of a decision.

    Attributes:
        shape: its sizes.
        device: its device in torch's notation.
        dtype: the name of its dtype in torch.
        requires_grad: whether it needs a gradient.
    """

    shape: tuple[Expression, ...]
    device: str
    dtype: Annotated[str, re.compile(r"[a-z]\w*")]
    requires_grad: bool


type Argument = TensorArgument | Integer | Float | Number | Operation | bool | float | None
"""One argument of a decision."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A call of a deciding function, with its result.

    Attributes:
        function: its name, one of ``DECIDERS``.
        args: its arguments.
        answer: its result as text.
    """

    function: Annotated[str, re.compile("|".join(DECIDERS))]
    args: tuple[Argument, ...]
    answer: str

    def answer_at(self, numbers: Mapping[int, int]) -> str:
        """Returns the function's answer at other values of the variables, given by their positions.

        Raises:
            ValueError: if the function is not one of ``DECIDERS``.
        """
        if self.function not in DECIDERS:
            raise ValueError(f"{self.function} decides nothing")
        function = getattr(import_module(DECIDERS[self.function]), self.function)
        return str(decide(function, self.args, numbers))


def decide(function: Callable[..., Any], args: tuple[Argument, ...], numbers: Mapping[int, int]) -> Any:
    """Returns the result of a deciding function at these values of the variables."""
    with tracectx(TraceCtx()):
        return function(*(_fill(each, numbers) for each in args))


def describe_argument(arg: Any) -> Argument:
    """Returns an argument of a decision as data.

    Raises:
        Declined: if its type is not supported.
    """
    if isinstance(arg, TensorProxy):
        dtype = str(to_torch_dtype(arg.dtype)).removeprefix("torch.")
        return TensorArgument(tuple(map(express, arg.shape)), arg.device.device_str(), dtype, bool(arg.requires_grad))
    if type(arg) in SYMBOLIC:
        return arg.expression
    if arg is None or type(arg) in (bool, int, float):
        return arg  # type: ignore[no-any-return]
    raise Declined(f"something is decided about a {type(arg).__name__}", Scope.LENGTH)


def _fill(argument: Argument, numbers: Mapping[int, int]) -> Any:
    if isinstance(argument, TensorArgument):
        return TensorProxy(
            shape=tuple(evaluate(size, numbers) for size in argument.shape),
            device=devices.to_device(argument.device),
            dtype=dtypes.to_dtype(getattr(torch, argument.dtype)),
            requires_grad=argument.requires_grad,
        )
    return evaluate(argument, numbers) if isinstance(argument, Number | Operation) else argument


type Expressions = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class PassJournal:
    """The guards of Thunder's passes on the sizes of one program, and the expressions that they computed.

    Attributes:
        sizes: the place of each argument with its sizes: variables, and constants that must stay as they are.
        guards: comparisons.
        unequal: pairs of argument lists of two operations that would become one operation if the lists were equal.
        decisions: results of deciding functions.
        expressions: each that may be in a final trace or a region, in a fixed order.
        in_comments: each that is in comments only, as the sizes of operations that run as a whole, in a fixed order.
    """

    sizes: tuple[tuple[Place, tuple[int | Number, ...]], ...]
    guards: tuple[SizeGuard, ...]
    unequal: tuple[tuple[Expressions, Expressions], ...]
    decisions: tuple[Decision, ...]
    expressions: Expressions
    in_comments: Expressions = ()

    def validate(self) -> None:
        """Checks invariants that types do not express.

        Raises:
            ValueError: if a variable is not the size of exactly one argument, or paired lists differ in length, or
                places are invalid.
        """
        numbers = [size for _, sizes in self.sizes for size in sizes if isinstance(size, Number)]
        used = _find_numbers((self.guards, self.unequal, self.decisions, self.expressions, self.in_comments))
        if len({each.position for each in numbers}) != len(numbers) or not set(used) <= set(numbers):
            raise ValueError("does not have all numbers, each once")
        if any(len(one) != len(other) for one, other in self.unequal):
            raise ValueError("compares lists of two lengths")
        _check_places([place for place, _ in self.sizes])

    def check(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the values of the variables at these argument sizes, if all guards hold.

        Raises:
            Declined: if a guard fails, so that the passes might do something else, or an expression has no value.
        """
        numbers = self.read(arguments)
        for guard in self.guards:
            left, right = (evaluate(each, numbers) for each in (guard.left, guard.right))
            if COMPARISONS[guard.symbol](left, right) is not guard.outcome:
                raise Declined(f"a Thunder pass may do something else: {guard}", Scope.LENGTH)
        for one, other in self.unequal:
            if all(evaluate(left, numbers) == evaluate(right, numbers) for left, right in zip(one, other, strict=True)):
                raise Declined("two operations become the same at these sizes", Scope.LENGTH)
        for decision in self.decisions:
            if decision.answer_at(numbers) != decision.answer:
                raise Declined(f"{decision.function} decides otherwise", Scope.LENGTH)
        for each in self.expressions:
            evaluate(each, numbers)
        return numbers

    def read(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the values of the variables at these argument sizes.

        Raises:
            Declined: if there are other arguments, a constant size differs, or a variable would be 0 or 1.
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
    """The part of a stored family that is neither programs nor reads.

    Attributes:
        passes: the guards of the passes.
        known: the sizes of the arguments of each program.
    """

    passes: PassJournal
    known: tuple[tuple[tuple[Place, tuple[int, ...]], ...], ...]

    def validate(self) -> None:
        """Checks invariants that types do not express.

        Raises:
            ValueError: if the arguments or their numbers of sizes differ among the programs.
        """
        if any(list(map(_count, each)) != list(map(_count, self.passes.sizes)) for each in self.known):
            raise ValueError("has sizes of other arguments")


def encode_outline(passes: PassJournal, sizes: Sequence[ArgumentSizes]) -> bytes:
    """Returns the bytes of the guards and of the sizes of a family's programs. Equal outlines have equal bytes.

    Raises:
        ValueError: if it contains a number that JSON cannot represent.
    """
    outline = _FamilyOutline(passes, tuple(tuple(each.items()) for each in sizes))
    return codec.encode(outline, format=FAMILY_FORMAT)


def decode_outline(content: bytes) -> tuple[PassJournal, tuple[ArgumentSizes, ...]]:
    """Returns the arguments of ``encode_outline`` from its bytes.

    Raises:
        ValueError: if the bytes are no outline.
    """
    found = codec.decode(_FamilyOutline, content, "family", format=FAMILY_FORMAT)
    return found.passes, tuple(map(dict, found.known))


def _find_numbers(value: Any) -> Iterator[Number]:
    """Yields the variables in guards, decisions and expressions."""
    if isinstance(value, Number):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _find_numbers(each)
    elif isinstance(value, SizeGuard | Operation):
        yield from _find_numbers((value.left, value.right))
    elif isinstance(value, Decision | TensorArgument):
        yield from _find_numbers(value.args if isinstance(value, Decision) else value.shape)


def _check_places(places: Sequence[Place]) -> None:
    keys = [key for place in places for key in (place if isinstance(place, tuple) else (place,))]
    is_deep = all(len(place) > 1 for place in places if isinstance(place, tuple))
    if len(set(places)) < len(places) or not is_deep or any(isinstance(key, int) and key < 0 for key in keys):
        raise ValueError("does not have arguments, each once")


def _count(sizes: tuple[Place, tuple[Any, ...]]) -> tuple[Place, int]:
    return sizes[0], len(sizes[1])


MOST_KNOWN = 6
"""The largest number of programs of a family. Each distinguishes numbers that were equal in all earlier ones."""


class Family:
    """Programs of one form that differ only in numbers, with the guards for further sizes.

    Args:
        reads: the outside values that they depend on.
        passes: the guards of Thunder's passes.
        known: programs that Thunder derived, two or more.

    Attributes:
        reads: as above.
        passes: as above.
        known: the programs that it is made of.
        is_foreign: whether it came from another machine.

    Raises:
        Declined: if the programs differ in more than numbers, or something else may depend on sizes.
    """

    def __init__(self, reads: tuple[Read, ...], passes: PassJournal, known: Sequence[KnownProgram]):
        records = [each.read_records() for each in known]
        # Without the names of calls, which depend on sizes.
        first, *others = ([replace(each, calls=()) for each in record.placements] for record in records)
        if any(other != first for other in others):
            raise Declined("its collectives are in other places", Scope.LENGTH)
        self.reads = reads
        self.passes = passes
        self.known = tuple(known)
        self.is_foreign = False
        self._general = self._generalize(self.known)
        self._digests = list_digests(known[0].text)
        self._records = records[0]

    def _generalize(self, known: Sequence[KnownProgram]) -> GeneralProgram:
        programs = [(each.text, self.passes.read(each.sizes)) for each in known]
        return GeneralProgram(programs, self.passes.expressions, self.passes.in_comments)

    def is_same(self, other: Family) -> bool:
        """True if two families have equal reads and guards. They may contain different programs."""
        return (self.reads, self.passes) == (other.reads, other.passes)

    def fits(self, sizes: ArgumentSizes) -> bool:
        """True if all guards hold for arguments of these sizes."""
        try:
            self.passes.check(sizes)
        except Declined as declined:
            declined.require(Scope.LENGTH)
            return False
        return True

    def learn(self, program: KnownProgram) -> bool:
        """Adds a program, which distinguishes numbers that were equal by chance; returns whether it was added.

        A program with sizes for which a guard fails does not belong to the family. One with known sizes adds nothing.
        One without records of its regions is not added, because the stored family would not decode.

        Raises:
            Declined: if it differs in more than numbers.
        """
        adds_nothing = program.regions is None or any(each.sizes == program.sizes for each in self.known)
        if adds_nothing or len(self.known) >= MOST_KNOWN or not self.fits(program.sizes):
            return False
        known = (*self.known, program)
        self._general, self.known = self._generalize(known), known
        return True

    def prepare(self) -> None:
        """Compiles the Python code that programs are filled into, which takes longer than to fill one in.

        Raises:
            Declined: if a number is at a place where none can be filled in.
        """
        self._general.prepare()

    def fill(self, sizes: ArgumentSizes, identify: Identify) -> tuple[FilledProgram, ProgramRecords]:
        """Returns the program for arguments of these sizes, and the records of its regions.

        Raises:
            Declined: if a guard fails, so that Thunder's passes might do something else.
            Declined: if the value of a number is unknown.
        """
        filled = self._general.fill(self.passes.check(sizes), identify)
        return filled, self._fill_records(filled.digests)

    def fill_templates(self, length: int, identify: Identify) -> Mapping[str, TemplateReference]:
        """Returns the templates of the program at a length, by name: see ``GeneralProgram.fill_templates``.

        Raises:
            Declined: if the argument sizes do not follow from the length, or for a reason of ``fill``.
        """
        sizes = scale_sizes(self.known[0].sizes, self.known[1].sizes, length)
        return self._general.fill_templates(self.passes.check(sizes), identify)[0]

    def _fill_records(self, digests: Sequence[str]) -> ProgramRecords:
        """Returns the records of the regions with the digests of the filled-in templates."""
        others: Mapping[str | None, str] = dict(zip(self._digests, digests, strict=True))
        regions = (replace(region, digest=others.get(region.digest, region.digest)) for region in self._records.regions)
        return replace(self._records, regions=tuple(regions))


def list_digests(program: ProgramText) -> list[str]:
    """Returns the digests of a program's templates, in the order of their first calls."""
    templates = program.templates()
    return [templates[name].digest for name in list_templates(program)]


_FAMILY, _READS, _PROGRAM, _REGIONS = "family", "reads", "program-", "regions-"


def find_families(store: Store, form: Key) -> tuple[Family, ...]:
    """Returns the families that are stored for a form. Removes families that cannot be decoded. Never raises."""
    return tuple(family for _, family in _list_families(store, form, asks_remote=True))


def list_stored_families(store: Store) -> Iterator[Family]:
    """Yields all stored families. Removes families that cannot be decoded."""
    texts = {entry.digest: entry.text for entry in store.entries() if is_family(entry.backend)}
    for digest, text in texts.items():
        yield from (family for _, family in _list_families(store, Key(digest, text, ())))


def store_family(store: Store, form: Key, family: Family, name: str) -> bool:
    """Stores a family in place of its stored version. If all slots are taken, the oldest family is replaced.

    A family from another machine stays unchanged, also if this process added programs to it. A new version would have
    that machine's programs without its signature, and would outlive the revocation of its key.

    Args:
        store: the store to write to.
        form: the form of its programs.
        family: the family; programs that other processes stored for it are added to it.
        name: the model's name, for messages.

    Returns:
        Whether it is stored.

    Raises:
        ValueError: if something in it cannot be encoded.
    """
    with store.take_turn(form, FAMILY_SLOTS[0], WRITE_SECONDS):
        found = dict(_list_families(store, form))
        same = [slot for slot, other in found.items() if other.is_same(family)]
        if family.is_foreign or any(found[slot].is_foreign for slot in same):
            return bool(same)
        for slot in same:
            _learn_all(family, found[slot].known)
        slot = same[0] if same else store.choose_slot(form, FAMILY_SLOTS, found)
        artifacts = encode_family(family)
        store.remove(form, slot)
        return store.save(form, slot, artifacts, name=name)


def remove_family(store: Store, form: Key, family: Family) -> None:
    """Removes all stored versions of a family."""
    with store.take_turn(form, FAMILY_SLOTS[0], WRITE_SECONDS):
        for slot, other in _list_families(store, form):
            if other.is_same(family):
                store.remove(form, slot)


def encode_family(family: Family) -> Mapping[str, bytes]:
    """Returns a family as artifacts. Equal families have equal bytes.

    Raises:
        ValueError: if something in it cannot be encoded.
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
        ValueError: if these are not the artifacts of a family.
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
    except Exception as error:  # such as programs that differ in more than numbers
        raise ValueError(f"no family: {error!r}") from error


def _list_families(store: Store, form: Key, *, asks_remote: bool = False) -> Iterator[tuple[str, Family]]:
    return store.read_slots(
        form, FAMILY_SLOTS, _decode_stored, "a stored family that does not decode", asks_remote=asks_remote
    )


def _decode_stored(artifacts: StoredArtifacts) -> Family:
    family = decode_family(artifacts)
    family.is_foreign = artifacts.is_foreign
    return family


def _learn_all(family: Family, known: tuple[KnownProgram, ...]) -> None:
    for program in known:
        try:
            family.learn(program)
        except Declined as error:  # the family keeps the programs that it has in this process
            error.require(Scope.LENGTH)
            logger.info("a stored program is of no family here: %s", error)
