"""Captures of programs: all captures of a forward program for one kind of call, each with its backward captures.

There is one forward capture, and more if calls overlap. Each has one backward capture, and more if the user holds on
to gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from weakref import ref

import torch

from fusioncache.accelerators.graphs.buffers import (
    Addresses,
    Aliases,
    Arguments,
    Results,
    StaticBuffer,
    find_memory,
    make_buffer,
)
from fusioncache.accelerators.graphs.calls import Build, CallKind, WarmUp, flatten_structure, without_gradients
from fusioncache.accelerators.graphs.cuda import GraphRecording
from fusioncache.accelerators.graphs.memory import (
    LEASED,
    LENT,
    GradientLease,
    GraphMemory,
    Keeper,
    SavedTensorsLease,
    SavedValues,
    can_lend,
)
from fusioncache.ir.errors import Declined, Scope

BackwardFunction = Callable[[list[Any], list[Any]], Any]
"""Takes the saved tensors and other saved values of forward, and the gradients of its outputs. Empties both lists."""


class CapturedBackward:
    """A capture of a backward program for one forward capture.

    Saved tensors are read in place. Gradients of outputs are copied in. Gradients of inputs are lent in place, or
    copied if they cannot be lent.

    Args:
        function: the program.
        forward: the capture that saved the tensors.
        others: the values besides tensors that it saved.
        given: all saved tensors and the gradients of this call, which is captured but not run.
        kind: of the gradients.
        pool: the number of the pool to allocate from.

    Attributes:
        kind: the same.
        pool: the same.

    Raises:
        Declined: if the program cannot be captured.
        Exception: any other error of the capture.
    """

    def __init__(
        self,
        function: BackwardFunction,
        forward: CapturedForward,
        others: Sequence[Any],
        given: tuple[Sequence[Any], Sequence[Any]],
        kind: CallKind,
        pool: int,
    ):
        self.kind = kind
        self.pool = pool
        saved, gradients = given
        memory = forward.memory
        self._gradient_leases = memory.gradient_leases
        self._safe = memory.gradient_leases.list_names(pool)
        self._copied = tuple(make_buffer(gradient) for gradient in gradients)
        inputs = forward.list_inputs(saved)
        outside = [(number, inputs[place]) for number, place in enumerate(forward.saved_outside)]
        passed = len(forward.passed)
        outside += [(passed + number, buffer.tensor) for number, buffer in enumerate(self._copied)]
        inputs += [buffer.tensor for buffer in self._copied]
        builds: list[Build] = []
        count, others = len(saved), tuple(others)

        def record(arguments: list[Any]) -> list[Any]:
            tensors, cotangents = arguments[:count], arguments[count:]
            arguments.clear()
            leaves, build = flatten_structure(function([tensors, others], cotangents))
            builds.append(build)
            return leaves

        recording = memory.recorder.record(record, inputs.copy(), pool)
        self._replay, self._build = recording.replay, builds[-1]
        keeper = Keeper(recording.replay)
        self._results = Results(recording.results, Arguments(outside), (), memory.recorder.device, keeper)
        self._gradient_lease = self._make_gradient_lease(keeper, recording.results, inputs)
        recording.results.clear()

    def is_free(self) -> bool:
        """True if the gradients that are lent allow a replay now. Gradients that it lent itself forbid it."""
        return self._gradient_leases.allows(self.pool, self._safe)

    def _make_gradient_lease(
        self, keeper: Keeper, leaves: Sequence[Any], inputs: Sequence[Any]
    ) -> GradientLease | None:
        """Returns the lease of the gradients; None if they cannot be lent, as one in the memory of a saved tensor."""
        lent = set(self._results.copier.list_storages())
        given = {find_memory(each) for each in inputs if isinstance(each, torch.Tensor)}
        if not lent or not can_lend() or lent & given:
            return None
        owners = [each for each in leaves if isinstance(each, torch.Tensor) and find_memory(each) in lent]
        return GradientLease(self._results.copier, keeper, owners, self.pool)

    @property
    def lends(self) -> bool:
        """True if gradients are returned in place, without a copy."""
        return self._gradient_lease is not None and not self._gradient_lease.is_recalled

    def count_copies(self) -> int:
        """Returns how many gradients are copied after a replay."""
        return 0 if self.lends else self._results.copier.count

    def run(self, passed: Sequence[Any], gradients: Sequence[Any]) -> Any:
        """Replays it with the saved tensors that autograd passed; returns the gradients of the inputs."""
        gradient_lease = self._gradient_lease if self.lends else None
        with without_gradients():
            for buffer, gradient in zip(self._copied, gradients, strict=True):
                buffer.fill(gradient)
            self._replay()
            leaves = self._results.give([*passed, *gradients], gradient_lease.lend if gradient_lease else None)
        if gradient_lease is not None:
            self._gradient_leases.add(gradient_lease)
        return self._build(leaves)


@dataclass(frozen=True, slots=True)
class ForwardFunction:
    """A program's computation, as Thunder compiled it.

    Attributes:
        call: takes tensors and returns the results; with a backward, the pair of the results and the saved values.
        has_backward: whether there is a backward program.
        writes: whether it may write into its arguments.
    """

    call: Callable[..., Any]
    has_backward: bool
    writes: bool = False


class CapturedForward:
    """A capture of a forward program for one kind of call.

    Args:
        function: the program.
        arguments: of the call, which is captured but not run.
        fixed: positions of the tensors among the arguments that it may read in place.
        moving: positions of the other tensors, which are copied.
        memory: of the device.
        owner: holds the capture. A weak reference, so that the capture is freed after its last caller.

    Attributes:
        name: identifies it in the memory.
        memory: the same.
        saved_outside: positions, among the values saved for backward, of tensors that lie outside of the pool.
        passed: positions of the saved tensors that autograd stores: ``saved_outside``, or any one if there are none.
            Tensors in the pool keep their address and have no other user; each one stored costs a microsecond a step.
        backwards: its backward captures.
        is_stale: whether it is to be captured anew.

    Raises:
        Declined: if the program cannot be captured.
        Exception: any other error of the capture.
    """

    def __init__(
        self,
        function: ForwardFunction,
        arguments: Sequence[Any],
        fixed: Sequence[int],
        moving: Sequence[int],
        memory: GraphMemory,
        owner: ref[ForwardCaptures],
    ):
        self.name = object()
        self.saved_outside: tuple[int, ...] = ()
        self.passed: tuple[int, ...] = ()
        self.backwards: list[CapturedBackward] = []
        self.is_stale = False
        self.memory = memory
        self._owner = owner
        self._safe = memory.list_leased()
        self._fixed, self._find_fixed = tuple(fixed), _getter(fixed)
        self._has_backward = function.has_backward
        self._owners: Sequence[Any] = ()
        buffers = {place: make_buffer(arguments[place]) for place in moving}
        inside = [buffers[place].tensor if place in buffers else each for place, each in enumerate(arguments)]
        self._addresses = self._read_addresses(inside)
        self._aliases = tuple(_find_aliases(inside, self._fixed))
        self._copied: tuple[tuple[int, StaticBuffer], ...] = tuple(buffers.items())
        moved = set(buffers)
        places = (*self._fixed, *moved)
        versions = {place: _read_version(inside[place]) for place in places}
        recording, self._build, saved = _record(function, inside, self.memory)
        self._replay = recording.replay
        written = [place for place in places if versions[place] != _read_version(inside[place])]
        if not moved.isdisjoint(written):
            raise Declined("it writes into an argument whose address changes", Scope.CAPTURE)
        self._written = tuple(written)
        self._keep(recording.results, saved, Arguments((place, inside[place]) for place in places))

    def _keep(self, leaves: list[Any], saved: range, arguments: Arguments) -> None:
        device = self.memory.recorder.device
        self._results = Results(leaves, arguments, set(saved), device)
        kept = [leaves[place] for place in saved]
        leaves.clear()
        tensors = [place for place, each in enumerate(kept) if isinstance(each, torch.Tensor)]
        self.saved_outside = tuple(place for place in tensors if arguments.find_origin(kept[place]) is not None)
        # Without any saved tensor, autograd would not notice a second backward.
        self.passed = self.saved_outside or tuple(tensors[:1])
        self._find_passed = _getter(self.passed)
        self._saved = self._results.list_constant(saved)
        outside = set(self.saved_outside)
        self._owners = [kept[place] for place in tensors if place not in outside]
        self._saves_inside = bool(self._owners)
        aliases = Aliases()
        inputs: list[Any] = [None] * len(kept)
        for place in tensors:
            origin = arguments.find_origin(kept[place])
            position = origin if isinstance(origin, int) or origin is None else origin.position
            if position is None:
                inputs[place] = aliases.make(kept[place])
            elif position not in set(self._fixed):
                inputs[place] = kept[place]
        self._inputs = tuple(inputs)

    @property
    def owns_saved(self) -> bool:
        """True if it owns the memory of its saved tensors in the pool."""
        return not self._saves_inside or bool(self._owners)

    def release_saved(self) -> None:
        """Releases the memory of its saved tensors to later captures, as its backward is captured."""
        self._owners = ()

    def complete(self, passed: Sequence[Any]) -> list[Any]:
        """Returns all saved values of a call, given the saved tensors that autograd stored."""
        saved = self._saved.copy()
        for place, each in zip(self.saved_outside, passed, strict=False):
            saved[place] = each
        return saved

    def list_inputs(self, saved: Sequence[Any]) -> list[Any]:
        """Returns the saved values of a call as backward must read them: at the addresses that each replay writes."""
        return [given if own is None else own for given, own in zip(saved, self._inputs, strict=True)]

    def find_backward(self, kind: CallKind) -> CapturedBackward | None:
        """Returns a backward capture for gradients of a kind that may be replayed now, or None."""
        return next((each for each in self.backwards if each.kind == kind and each.is_free()), None)

    def find_backward_pool(self, kind: CallKind) -> int:
        """Returns a pool for another backward capture for gradients of a kind. Each such capture has its own pool.

        Raises:
            Declined: if no pool is free.
        """
        pool = self.memory.gradient_leases.find_pool([each.pool for each in self.backwards if each.kind == kind])
        if pool is None:
            raise Declined(LENT, Scope.CAPTURE)
        return pool

    def remove_from_owner(self) -> None:
        """Removes it from its owner."""
        owner = self._owner()
        if owner is not None:
            owner.forget(self)

    def is_free(self) -> bool:
        """True if the leases in the memory allow a replay now. Its own lease forbids it."""
        return self.memory.allows(self._safe)

    def count_safe(self) -> int:
        """Returns the number of leases during which it may be replayed."""
        return len(self._safe)

    def has_captured_addresses(self, arguments: Sequence[Any]) -> bool:
        """True if the arguments that it does not copy have the addresses of the captured ones."""
        if self._read_addresses(arguments) != self._addresses:
            return False
        return not self._aliases or all(
            (arguments[one] is arguments[other]) == are_one for one, other, are_one in self._aliases
        )

    def _read_addresses(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        return tuple(map(torch.Tensor.data_ptr, self._find_fixed(arguments)))

    def run(self, arguments: Sequence[Any]) -> Any:
        """Replays it for a call, and returns the results of the program."""
        from torch.autograd.graph import increment_version

        with without_gradients():
            for place, buffer in self._copied:
                buffer.fill(arguments[place])
            self._replay()
            if self._written:  # a replay increments no version counters
                increment_version([arguments[place] for place in self._written])
            result = self._build(self._results.give(arguments))
        self.memory.touch(self.name)
        if not self._has_backward:
            return result
        leaving, (saved, others) = result
        release = self.memory.lease(self.name, self)
        passed = list(self._find_passed(saved))
        lease = SavedTensorsLease(self, self._read_outside(passed), release)
        return leaving, (passed, SavedValues.make(others, lease))

    def _read_outside(self, passed: Sequence[Any]) -> object:
        """Returns the addresses and strides of the saved tensors outside of the pool."""
        tensors = passed if self.saved_outside else ()
        return tuple(map(torch.Tensor.data_ptr, tensors)), tuple(map(torch.Tensor.stride, tensors))

    def matches_lease(self, passed: Sequence[Any], lease: SavedTensorsLease) -> bool:
        """True if these are the saved tensors of the leased call, not others that replaced them."""
        return self._read_outside(passed) == lease.outside


def _find_aliases(tensors: Sequence[Any], places: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Yields pairs of places of arguments that begin at one address, and whether they are the same tensor."""
    before: dict[int, int] = {}
    for place in places:
        address = tensors[place].data_ptr()
        if address in before:
            yield before[address], place, tensors[before[address]] is tensors[place]
        before[address] = place


def _read_version(tensor: Any) -> int | None:
    """Returns the version counter of a tensor; None for an inference tensor, which has none."""
    return None if tensor.is_inference() else tensor._version


def _getter(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda arguments: [arguments[place] for place in places]


def _record(
    function: ForwardFunction, inside: Sequence[Any], memory: GraphMemory
) -> tuple[GraphRecording, Build, range]:
    """Captures a forward program.

    Returns:
        The recording, the function that assembles the results, and the places of saved tensors among their leaves.
    """
    seen: list[tuple[Build, range]] = []

    def record(arguments: list[Any]) -> list[Any]:
        given = arguments.copy()
        arguments.clear()
        result = function.call(*given)
        leaves, build = flatten_structure(result)
        saved = range(0)
        if function.has_backward:
            leaving, (tensors, _) = result
            start = len(flatten_structure(leaving)[0])
            saved = range(start, start + len(tensors))
        seen.append((build, saved))
        return leaves

    recording = memory.recorder.record(record, list(inside))
    return recording, *seen[-1]


MAX_CAPTURES = 4
"""How many captures one kind of call may have, for calls that each come before the backward of the previous one."""
MAX_RECAPTURES = 24
"""How often one kind of call may be captured in all. Captures of a call that needs more do not stay valid."""


class ForwardCaptures:
    """The captures of a forward program for one kind of call.

    Args:
        function: the program.
        positions: of the tensors among its arguments.
        parameters: whether each tensor is a parameter.
        memory: of the device.

    Attributes:
        memory: the same.
        warm_up: runs the calls before the first capture. It has the reason if there are no captures.
    """

    def __init__(
        self,
        function: ForwardFunction,
        positions: Sequence[int],
        parameters: Sequence[bool],
        memory: GraphMemory,
    ):
        self.memory = memory
        self.warm_up = WarmUp()
        self._function = function
        self._positions = tuple(positions)
        self._addresses = Addresses(parameters)
        self._captured: list[CapturedForward] = []
        self._times = 0

    @property
    def count(self) -> int:
        """The number of captures."""
        return len(self._captured)

    def observe(self, arguments: Sequence[Any]) -> None:
        """Records the addresses of the tensors of a call."""
        self._addresses.observe([arguments[place] for place in self._positions])

    def find_capture(self, arguments: Sequence[Any]) -> CapturedForward | None:
        """Returns the capture to replay for a call; None if none may be replayed, or an argument has moved."""
        free = [captured for captured in self._captured if captured.is_free()]
        if not free:
            return None
        # Captures that tolerate more leases are left for calls that come before the next backward.
        captured = free[0] if len(free) == 1 else min(free, key=CapturedForward.count_safe)
        is_fresh = not captured.is_stale or self._times >= MAX_RECAPTURES
        if is_fresh and captured.has_captured_addresses(arguments):
            return captured
        self.memory.remove(captured.name)
        return None

    def capture(self, arguments: Sequence[Any]) -> CapturedForward:
        """Captures the program for a call.

        Raises:
            Declined: if the capture is refused: permanently if it is noted in ``warm_up``, else only for now.
            Exception: any other error of the capture.
        """
        if not self.memory.allows_capture():
            overlaps = any(self.memory.is_leased(each.name) for each in self._captured)
            raise Declined(
                "a call before the backward pass of the previous call" if overlaps else LEASED, Scope.CAPTURE
            )
        if self._times >= MAX_RECAPTURES:
            reason = "addresses of arguments, or other programs, change too often"
            if not self._captured:
                self.warm_up.refused = reason
            raise Declined(reason, Scope.CAPTURE)
        self._make_room()
        self._times += 1
        self.observe(arguments)
        fixed, moving = self._divide()
        try:
            captured = CapturedForward(self._function, arguments, fixed, moving, self.memory, ref(self))
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self.warm_up.refused = refusal.reason
            raise
        self._captured.append(captured)
        self.memory.add(captured.name, captured)
        return captured

    def forget(self, captured: CapturedForward) -> None:
        """Drops one of the captures."""
        self._captured.remove(captured)

    def _make_room(self) -> None:
        if len(self._captured) < MAX_CAPTURES:
            return
        idle = next((each for each in self._captured if not self.memory.is_leased(each.name)), None)
        if idle is None:
            raise Declined(f"more than {MAX_CAPTURES} calls before the backward pass of the first", Scope.CAPTURE)
        self.memory.remove(idle.name)

    def _divide(self) -> tuple[list[int], list[int]]:
        lie_still = {self._positions[index] for index in self._addresses.list_fixed()}
        moving = [place for place in self._positions if place not in lie_still]
        if moving and self._function.writes:
            self.warm_up.refused = "it writes into arguments whose addresses change"
            raise Declined(self.warm_up.refused, Scope.CAPTURE)
        return [place for place in self._positions if place in lie_still], moving
