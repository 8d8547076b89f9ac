"""Captures without a GPU: a replay calls the function again, and writes its results into the memory of the capture."""

from collections import defaultdict
from dataclasses import dataclass, field
from weakref import WeakSet, finalize

import torch

from fusioncache.accelerators.graphs.buffers import Aliases, find_base
from fusioncache.accelerators.graphs.cuda import FORWARD, GraphRecording

ALIGNMENT = 64
NOISE = 0xFF


class Pool:
    """Blocks of memory. A block is free if only the pool owns it. Aliases own nothing, as on a GPU."""

    def __init__(self):
        self.blocks: list[torch.Tensor] = []
        self.replays: WeakSet = WeakSet()

    def add(self, replay):
        self.replays.add(replay)
        finalize(replay, self.end).atexit = False

    def end(self):
        if not self.replays:
            for block in self.free():
                block.fill_(NOISE)

    def free(self) -> list[torch.Tensor]:
        return [block for block in self.blocks if torch._C._storage_Use_Count(block.untyped_storage()._cdata) == 2]

    def take(self, size: int) -> torch.Tensor:
        """Returns a view of the oldest block that is free and large enough; adds a block if there is none."""
        block = next((block for block in self.free() if block.numel() >= size), None)
        if block is None:
            block = torch.zeros(-(-max(size, 1) // ALIGNMENT) * ALIGNMENT, dtype=torch.uint8)
            self.blocks.append(block)
        return block[:size]

    def addresses(self) -> set[int]:
        return {block.data_ptr() for block in self.blocks}


@dataclass
class FakeRecorder:
    """A recorder whose replays overwrite all memory that was free at capture, as kernels may with intermediates."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    pools: dict[int, Pool] = field(default_factory=lambda: defaultdict(Pool))
    unready: str | None = None
    error: Exception | None = None
    records: int = 0
    finished: int = 0

    def explain_unready(self):
        return self.unready

    def read_random_state(self):
        return torch.get_rng_state().numpy().tobytes()

    def finish(self):
        self.finished += 1

    @property
    def replays(self):
        return [replay for pool in self.pools.values() for replay in pool.replays]

    @property
    def pool(self):
        return self.pools[FORWARD]

    def addresses(self):
        return {address for pool in self.pools.values() for address in pool.addresses()}

    def record(self, function, arguments, pool=FORWARD):
        memory = self.pools[pool]
        self.records += 1
        if self.error is not None:
            raise self.error
        # Aliases, as a graph owns nothing.
        replayed = [Aliases().make(each) if is_plain(each) else each for each in arguments]
        outside = {find_memory(each) for each in arguments if isinstance(each, torch.Tensor) and not self.owns(each)}
        given = [Aliases().make_bytes(each) for each in arguments if is_plain(each)]
        contents = [each.clone() for each in given]
        results = list(function(arguments))
        assert not arguments
        for each, content in zip(given, contents, strict=True):  # a capture executes nothing
            each.copy_(content)
        results = self._move(results, outside, memory)
        places = [Aliases().make_bytes(each) if self.owns(each) else None for each in results]
        memory.take(1 + sum(place.nbytes for place in places if place is not None))
        noise = [Aliases().make(block) for block in memory.free()]

        def replay():
            values = list(function(replayed.copy()))
            pairs = [(value, place) for value, place in zip(values, places, strict=True) if place is not None]
            contents = [Aliases().make_bytes(value).clone() for value, _ in pairs]
            for block in noise:
                block.fill_(NOISE)
            for (_, place), content in zip(pairs, contents, strict=True):
                place[: content.numel()].copy_(content)

        memory.add(replay)
        return GraphRecording(replay, results)

    def owns(self, value):
        return is_plain(value) and find_memory(value) in self.addresses()

    def _move(self, values, outside, pool):
        """Returns the values moved to the pool's memory, views as views; those in memory of inputs or the pool stay."""
        memory, bases, firsts, moved_before, given = {}, {}, {}, {}, values.copy()
        for place, value in enumerate(given):
            if id(value) in moved_before:
                values[place] = moved_before[id(value)]
                continue
            if not is_plain(value) or find_memory(value) in outside or self.owns(value):
                continue
            old = find_memory(value)
            if old not in memory:
                memory[old] = pool.take(value.untyped_storage().nbytes())
            if value.is_conj():
                continue
            base, storage = find_base(value), memory[old].untyped_storage()
            if id(base) not in bases:
                first, first_moved = firsts.get(old, (base, None))
                if first.dtype == base.dtype and first is not base and share_version_counter(first, base):
                    bases[id(base)] = first_moved.detach().as_strided(base.shape, base.stride(), base.storage_offset())
                else:
                    bases[id(base)] = place_like(base, storage)
                firsts.setdefault(old, (base, bases[id(base)]))
            moved = bases[id(base)]
            if value is not base and value.dtype == base.dtype:
                moved = moved.as_strided(value.shape, value.stride(), value.storage_offset())
            elif value is not base:
                moved = place_like(value, storage)
            values[place] = moved_before[id(value)] = moved
        return values


def place_like(value, storage):
    return torch.empty(0, dtype=value.dtype).set_(storage, value.storage_offset(), value.shape, value.stride())


def share_version_counter(one, other):
    """True if the tensors share a version counter, as a tensor and its ``detach()`` do."""
    before = other._version
    torch.autograd.graph.increment_version(one)
    return other._version != before


def is_plain(value):
    """True for a tensor whose memory the fake manages: strided, on the CPU, not empty."""
    is_tensor = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_tensor and value.device.type == "cpu" and value.numel() > 0


def find_memory(tensor):
    return tensor.untyped_storage().data_ptr()
