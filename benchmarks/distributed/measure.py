"""Measurements of shared training steps by one rank of ``benchmarks/distributed``, one point after the other."""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as distributed

from benchmarks.common.counting import Counter, counting_compiles, use_backend
from benchmarks.common.kernels import Kernel, profile_kernels
from benchmarks.common.steps import synchronize, use_deterministic_algorithms
from benchmarks.common.tensors import digest
from benchmarks.distributed.shared_model import SharedModel, share_model
from benchmarks.distributed.spec import PEERS, PointSpec

_GAP = 20.0
"""Microseconds above which an idle time of a device counts as a gap."""

Span = tuple[float, float]
"""Start and end."""

_PROFILED = 3
_TRAINED = 3
_LEARNING_RATE = 0.01
_INTEGERS = {2: torch.int16, 4: torch.int32}


def measure(argument: Mapping[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    """Yields this rank's measurements of each of the ``specs``."""
    specs = [PointSpec.read(each) for each in argument["specs"]]
    use_backend(specs[0].backend)
    for spec in specs:
        if not spec.share_caches:
            _use_own_caches(spec)
        start = time.perf_counter()
        with _counting(spec) as counter:
            shared: Any = share_model(spec, rank, counter)
            found = measure_point(spec, shared)
        yield {**found, "all_seconds": time.perf_counter() - start}
        del shared
        _forget(spec.device == "cuda")


def _counting(spec: PointSpec) -> AbstractContextManager[Counter]:
    """Counts compilations of Thunder without fusioncache only: no program would be stored with a patched function."""
    return counting_compiles(spec.backend) if PEERS[spec.peer].family == "thunder" else nullcontext(Counter())


def _use_own_caches(spec: PointSpec) -> None:
    """Sets cache directories of this point only, so that it finds nothing of other points. All ranks share them."""
    for variable in ("FUSIONCACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        first = os.environ.setdefault(f"{variable}_OF_JOB", os.environ[variable])
        os.environ[variable] = str(Path(first, spec.folder))


def _forget(on_gpu: bool) -> None:
    torch._dynamo.reset()
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()


def measure_point(spec: PointSpec, shared: SharedModel) -> dict[str, Any]:
    """Returns seconds, bytes, counts, and digests of losses and gradients."""
    wait_for_all(spec.device)
    start = time.perf_counter()
    shared.step()
    synchronize(spec.device)
    found: dict[str, Any] = {"first_step": time.perf_counter() - start, "compiles": shared.compiles()}
    found["programs"] = shared.programs()
    found |= _time_steps(spec, shared)
    found |= {"compiles_later": shared.compiles() - found["compiles"], "bypasses": dict(shared.bypasses())}
    found["timeline"] = _profile(shared) if spec.device == "cuda" else None
    found |= _train(spec, shared)
    further = list(_take_further(spec, shared))
    return {**found, "further": further, "programs_later": shared.programs()}


def _take_further(spec: PointSpec, shared: SharedModel) -> Iterator[dict[str, Any]]:
    """Yields, for each of several shorter lengths, the seconds of steps and the compilations of the first step."""
    for number in range(1, spec.further + 1):
        length, before = spec.tokens - number * spec.tokens // (2 * spec.further), shared.compiles()
        shorter = replace(shared, tokens=shared.tokens[..., :length].contiguous())
        shorter.clear()
        wait_for_all(spec.device)
        start = time.perf_counter()
        shorter.step()
        synchronize(spec.device)
        seconds = time.perf_counter() - start
        compiles = shared.compiles() - before
        yield {"tokens": length, "seconds": seconds, "compiles": compiles, **_time_steps(spec, shorter)}
    shared.clear()


def wait_for_all(device: str) -> None:
    """Waits for the other ranks."""
    distributed.barrier()
    synchronize(device)


def _time_steps(spec: PointSpec, shared: SharedModel) -> dict[str, Any]:
    for _ in range(spec.warmup):
        _step(shared)
    shared.clear()
    gc.collect()
    if spec.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    wait_for_all(spec.device)
    times = []
    for _ in range(spec.steps):
        start = time.perf_counter()
        _step(shared)
        synchronize(spec.device)
        times.append(1e3 * (time.perf_counter() - start))
    return {
        "step_ms": median(times),
        "fastest_ms": min(times),
        "slowest_ms": max(times),
        "bytes_peak": torch.cuda.max_memory_allocated() if spec.device == "cuda" else None,
    }


def _step(shared: SharedModel) -> None:
    shared.clear()
    shared.step()


def _profile(shared: SharedModel) -> dict[str, float]:
    return asdict(read_timeline(profile_kernels(lambda: _step(shared), _PROFILED), _PROFILED))


def _train(spec: PointSpec, shared: SharedModel) -> dict[str, Any]:
    """Trains for a few steps. Thunder uses deterministic algorithms.

    torch.compile would recompile for them.
    """
    # With ``warn_only`` the gradients of attention would still differ.
    use_deterministic_algorithms(PEERS[spec.peer].family != "torch")
    optimizer = torch.optim.SGD(shared.parameters, lr=_LEARNING_RATE)
    losses, gradients = [], []
    try:
        for _ in range(_TRAINED):
            shared.clear()
            losses.append(shared.step())
            gradients.append([checksum(parameter.grad) for parameter in shared.parameters])
            optimizer.step()
    finally:
        use_deterministic_algorithms(False)
    shared.clear()
    return {
        "losses": [loss.item() for loss in losses],
        "loss_bits": [digest(loss) for loss in losses],
        "gradient_bits": hashlib.sha256(str(gradients).encode()).hexdigest(),
    }


def checksum(gradient: torch.Tensor | None) -> tuple[int, int]:
    """Returns two sums over a tensor's bits, one of which depends on their order.

    They are computed on the tensor's device: copying and digesting gigabytes on the CPU takes longer than all else.
    """
    if gradient is None:
        return 0, 0
    local = gradient.to_local() if isinstance(gradient, distributed.tensor.DTensor) else gradient
    bits = local.contiguous().reshape(-1).view(_INTEGERS[local.element_size()]).long()
    return int(bits.sum()), int((bits * torch.arange(1, bits.numel() + 1, device=bits.device)).sum())


@dataclass(frozen=True, slots=True)
class Timeline:
    """Activity of a device in a step, in microseconds.

    Attributes:
        communication: time in which any kernel communicated.
        exposed: the part of it in which no other kernel ran.
        computing: time in which any other kernel ran.
        idle: time between the first and the last kernel in which none ran.
        gaps: number of idle times of more than 20 microseconds.
    """

    communication: float
    exposed: float
    computing: float
    idle: float
    gaps: float


def read_timeline(kernels: Sequence[Kernel], steps: int) -> Timeline:
    """Returns the activity of a device in one step, as the mean of several steps."""
    communication = unite((kernel.start, kernel.end) for kernel in kernels if kernel.communicates)
    computing = unite((kernel.start, kernel.end) for kernel in kernels if not kernel.communicates)
    anything = unite([*communication, *computing])
    idle = [after[0] - before[1] for before, after in pairwise(anything)]
    return Timeline(
        communication=length(communication) / steps,
        exposed=(length(anything) - length(computing)) / steps,
        computing=length(computing) / steps,
        idle=sum(idle) / steps,
        gaps=sum(gap > _GAP for gap in idle) / steps,
    )


def unite(spans: Iterable[Span]) -> list[Span]:
    """Returns the union of spans as disjoint spans, in order."""
    united: list[Span] = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


def length(spans: Iterable[Span]) -> float:
    """Returns the total length of spans."""
    return sum(end - start for start, end in spans)
