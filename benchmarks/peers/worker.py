"""One peer of the benchmark of peers, measured in a process of its own.

What the seconds mean. ``total`` is the wall time from before the peer is given the model to the end of the first step,
synchronized: a forward pass, and unless only inference is measured a loss and a backward pass. It has three parts:

- ``trace``: from Python to what the compiler is given: Thunder's traces and passes, fusioncache's transform included;
  Dynamo and AOTAutograd.
- ``compile``: the compilers: nvFuser, or TorchInductor with Triton or a C++ compiler. In a warm process also finding
  and loading what an earlier one left on disk.
- ``execute``: what remains: execution, autograd, and what a peer does that neither of the others covers.

``startup`` lies before all that: imports, the CUDA context, the compiler's worker processes, and the first compilation
of a process, with a function that has nothing in common with the model. A warm process finds that on disk, too.
"""

from __future__ import annotations

import time

_START = time.perf_counter()

import gc  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from benchmarks.common.processes import serve  # noqa: E402
from benchmarks.common.steps import synchronize, warm_up  # noqa: E402
from benchmarks.common.tensors import digest_all  # noqa: E402
from benchmarks.peers.check import copy_results, judge  # noqa: E402
from benchmarks.peers.contender import Contender, Counts  # noqa: E402
from benchmarks.peers.spec import PEERS, PeerSpec  # noqa: E402
from benchmarks.peers.steady import measure_steady  # noqa: E402
from benchmarks.peers.work import Work, make_work  # noqa: E402

Found = dict[str, Any]
"""What is known about a peer, as it goes to the parent process."""


@dataclass(frozen=True, slots=True)
class _First:
    """What a first step left: what a peer made of the model, its counts, and seconds."""

    call: Callable[[torch.Tensor], torch.Tensor]
    counts: Counts
    seconds: Mapping[str, float]


def measure(options: Mapping[str, Any]) -> Found:
    """Returns seconds, counts and correctness of one peer."""
    spec = PeerSpec(**options)
    contender = make_contender(spec)
    warm_up(contender.warm_up, spec.device, spec.dtype, not spec.inference)
    startup = time.perf_counter() - _START
    work = make_work(spec)
    first = _first_step(spec, contender, work)
    found: Found = {"seconds": dict(first.seconds), "startup": startup, **asdict(first.counts)}
    if not spec.first_step_only:
        found |= asdict(measure_steady(work, first.call, spec.steps, spec.warmup))
    notes = [*contender.notes(), *_compare_counts(first.counts, contender.counts())]
    tensors = _compute_again(spec, work, first.call)
    # Their memory is needed for the reference.
    del first, contender
    return found | {"notes": notes} | _correctness(spec, work, tensors)


def make_contender(spec: PeerSpec) -> Contender:
    """Returns the peer of a specification. Imports only what it needs."""
    peer = PEERS[spec.peer]
    if peer.kind == "thunder":
        from benchmarks.peers.thunder import Thunder

        return Thunder(peer, spec.backend)
    if peer.kind == "torch.compile":
        from benchmarks.peers.torch_compile import TorchCompile

        return TorchCompile(peer, spec.backend)
    return Contender()


def _first_step(spec: PeerSpec, contender: Contender, work: Work) -> _First:
    synchronize(spec.device)
    start = time.perf_counter()
    call = contender.compile(work.model)
    work.step(call)
    synchronize(spec.device)
    total = time.perf_counter() - start
    spent = contender.spent()
    seconds = {**asdict(spent), "execute": total - spent.trace - spent.compile, "total": total}
    return _First(call, contender.counts(), {name: round(value, 6) for name, value in seconds.items()})


def _compute_again(spec: PeerSpec, work: Work, call: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns what a peer computes. Thunder's peers add in the same order each time, so as to be compared.

    Nobody runs it so: the steps that are timed are not. TorchInductor compiles again for it.
    """
    if PEERS[spec.peer].kind == "thunder":
        torch.use_deterministic_algorithms(True, warn_only=True)
    work.clear()
    tensors = copy_results(work, work.step(call))
    torch.use_deterministic_algorithms(False)
    return tensors


def _compare_counts(first: Counts, last: Counts) -> list[str]:
    """Says if later steps compiled anything: they are meant to find everything compiled."""
    if (first.units, first.kernels) == (last.units, last.kernels):
        return []
    return [
        f"later steps compiled again: units {first.units} -> {last.units}, kernels {first.kernels} -> {last.kernels}"
    ]


def _correctness(spec: PeerSpec, work: Work, tensors: Mapping[str, torch.Tensor]) -> Found:
    deterministic = PEERS[spec.peer].kind == "thunder"
    found: Found = {"correct": None, "verdict": "not checked", "bitwise_digest": None}
    if deterministic:
        found["bitwise_digest"] = digest_all(tensors)
    gc.collect()
    try:
        verdict = judge(work, tensors)
    except torch.OutOfMemoryError:
        return found | {"verdict": "not checked: no memory for the reference"}
    errors = {"worst_tensor": verdict.worst, "worst_error": verdict.error, "worst_error_of_eager": verdict.eager}
    return found | errors | {"correct": not verdict.wrong, "verdict": str(verdict)}


if __name__ == "__main__":
    serve(measure)
