"""One process of ``benchmarks/starts``: the first step of a model in one way, and optional later steps."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import zoo
from benchmarks.common.compiled import Compiled, warm_up
from benchmarks.common.errors import Tensors, check_against_wider
from benchmarks.common.models import MODELS, ModelSpec, count_layers, make_model
from benchmarks.common.rematerialization import recompute_sums
from benchmarks.common.steps import measure_later, synchronize, use_deterministic_algorithms
from benchmarks.common.tensors import cotangent, digest_all, name_results
from benchmarks.common.ways import WAYS, Way
from benchmarks.zoo import Workload

PARTS = ("key", "reads", "load", "build", "trace", "guards", "compile", "kernels", "rest")
"""The parts of a first step: see ``Compiled.split``."""
FROM_HUGGING_FACE = ("GPT-2", "BERT", "ViT", "T5", "Whisper", "LoRA")
"""The models of ``benchmarks/zoo/with_loss.py``, which needs transformers."""
CLOCKS = ("wall", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpec(ModelSpec):
    """Specification of one process. The model is one of ``MODELS``, of the zoo, or of ``FROM_HUGGING_FACE``.

    Attributes:
        way: one of ``WAYS``.
        clock: ``"cpu"`` for the CPU seconds of the process and of its children, or ``"wall"``.
        recompute: whether to make Thunder's rematerialization recompute the residual stream.
        steps: number of timed later steps, after as many untimed ones; 0 for none.
    """

    way: str
    clock: str = "wall"
    recompute: bool = False
    steps: int = 0

    def __str__(self) -> str:
        width = f"{self.width} " if self.model == "llama" else ""
        return f"{width}{self.model}, {count_layers(self.layers)}, {self.way}"


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of each part of the first step, counts, a digest of the bits, and times of later steps."""
    spec = StartSpec.read(options)
    way = WAYS[spec.way]
    if spec.clock == "cpu":
        torch.set_num_threads(1)
    else:
        warm_up(way, spec.backend, spec.device, spec.dtype, grad=spec.grad)
    if way.exact:
        # With ``warn_only`` attention's gradients differ on a GPU, but the zoo's models may have no other algorithms.
        use_deterministic_algorithms(True, warn_only=spec.model not in MODELS)
    work = make_work(spec)
    if work.way == "thunderfx" and way.compiler == "thunder.jit":
        way = replace(way, compiler="thunderfx")
    gc.collect()  # collecting what imports left takes 0.2 s, and would fall into a random step
    with recompute_sums() if spec.recompute else nullcontext():
        return _measure(spec, way, work)


def _measure(spec: StartSpec, way: Way, work: Workload) -> dict[str, Any]:
    synchronize(spec.device)
    start, used = time.perf_counter(), _read_clocks()
    options: dict[str, Any] = {"jobs": 0} if way.uses_fusioncache and spec.clock == "cpu" else {}
    compiled = Compiled(way, spec.backend, work.model, **options)
    output = take_step(spec, work, compiled.call)
    synchronize(spec.device)
    total, children = time.perf_counter() - start, _read_clocks()[1] - used[1]
    found: dict[str, Any] = {"seconds": compiled.split(total), "counts": count(compiled)}
    if spec.clock == "cpu":
        seconds = {"total": sum(_read_clocks()) - sum(used), "children": children, "wall": total}
        found["seconds"] = seconds
    tensors = name_results(work.model, output)
    if way.exact:
        found["digest"] = digest_all(tensors)
    if spec.steps:
        kept = {name: tensor.cpu() for name, tensor in tensors.items()}  # the reference needs the GPU's memory
        found["later"] = _measure_later(spec, work, compiled)
        del compiled, output, tensors
        found |= _check(spec, work, kept)
    return found


def make_work(spec: StartSpec) -> Workload:
    """Returns the model, its inputs and its loss, from a fixed seed."""
    if spec.model in FROM_HUGGING_FACE:
        from benchmarks.zoo import with_loss

        return with_loss.make(spec.model)
    if spec.model not in MODELS:
        return zoo.make(spec.model, spec.layers, spec.device, spec.dtype)
    model, example = make_model(spec)
    return Workload(spec.model, model, (example,), _sum_with_cotangent, spec.layers, spec.layers, "jit")


def _sum_with_cotangent(output: torch.Tensor) -> torch.Tensor:
    return (output * cotangent(output)).sum()


def take_step(spec: StartSpec, work: Workload, call: Any) -> torch.Tensor:
    """Takes a step, which leaves gradients in the model's parameters. Returns the output."""
    with nullcontext() if spec.grad else torch.no_grad():
        output: torch.Tensor = call(*work.inputs)
    if spec.grad:
        work.loss(output).backward()
    return output


def count(compiled: Compiled) -> dict[str, Any]:
    """Returns the numbers of regions, compilations, loads and traces, and reasons for not sharing or storing."""
    stats = compiled.stats
    counts: dict[str, Any] = {**compiled.counts(), "kernels": compiled.count_kernels()}
    if compiled.transform is None:
        return counts
    names = ("regions", "templates", "loads", "programs_loaded", "programs_made", "canonicalize_seconds")
    reasons = ("programs_refused", "bypasses", "unkept")
    plans = [choice.plan.value for choice in compiled.transform.choices()]
    return {
        **counts,
        **compiled.count_parts(),
        **{name: getattr(stats, name) for name in names},
        **{name: dict(getattr(stats, name)) for name in reasons},
        "plans": list(dict.fromkeys(plans)),
    }


def _measure_later(spec: StartSpec, work: Workload, compiled: Compiled) -> dict[str, Any]:
    before = compiled.counts()["compiles"]
    later = measure_later(
        lambda: take_step(spec, work, compiled.call),
        lambda: work.model.zero_grad(set_to_none=True),
        device=spec.device,
        steps=spec.steps,
    )
    return {**later, "compiles": compiled.counts()["compiles"] - before}


def _check(spec: StartSpec, work: Workload, found: Tensors) -> dict[str, Any]:
    """Returns the errors of the first step's tensors; an empty dict if there is no memory for the reference."""

    def step(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        work.model.zero_grad(set_to_none=True)
        inputs = tuple(each.to(dtype) if each.is_floating_point() else each for each in work.inputs)
        output = take_step(spec, replace(work, inputs=inputs), work.model)
        return {name: tensor.cpu() for name, tensor in name_results(work.model, output).items()}

    use_deterministic_algorithms(False)
    try:
        return check_against_wider(found, work.model, step)
    except torch.OutOfMemoryError:
        return {}


def _read_clocks() -> tuple[float, float]:
    """Returns the CPU seconds of this process so far, and of the processes that it waited for."""
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime
