"""Measures the GPU memory that recompute of the residual stream saves, and its cost.

A stack of blocks of OLMo-2 and of Gemma-2, both of which add *normalized* terms to the residual stream, is trained by
Thunder with fusioncache: once without recompute, which is the reference, and then with each plan for the sums. Every
point is a fresh process with empty cache directories. It reports the peak memory of a step, the memory saved for
backward, the time of a step, and whether the output and every gradient have the reference's bits.

The models are litgpt's configurations at their original widths and depth, with two changes. No layer of Gemma-2 has a
sliding window: litgpt fills the window's mask row by row, which Thunder traces as thousands of regions. So that model
is Gemma-2-like, not Gemma-2. And the vocabulary is tiny, without a head and cross entropy: the backward pass starts
from random numbers after the last norm, because the logits' memory would hide that of the blocks.

The first step uses deterministic algorithms, and its output and gradients are compared. ``saved`` is the size of the
tensors that autograd saves for backward in it: their storages, each counted once, except those of the model and its
input. Later steps are those of ``benchmarks/common/steps.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, cast

import click
import torch

from benchmarks import zoo
from benchmarks.common.compiled import warm_up
from benchmarks.common.models import Place
from benchmarks.common.options import (
    Numbers,
    Words,
    count_option,
    limit_option,
)
from benchmarks.common.processes import print_progress
from benchmarks.common.runner import Point, Run, benchmark, pick
from benchmarks.common.steps import measure_later, synchronize, use_deterministic_algorithms
from benchmarks.common.tensors import digest, name_results
from benchmarks.common.thunder_jit import executors, make_transform
from benchmarks.common.ways import WAYS
from fusioncache.accelerators.residual.plans import Choice

MODELS = {"olmo-2": "OLMo-2-like", "gemma-2": "Gemma-2-like"}
"""Models of the zoo: in both a block adds normalized terms to the residual stream."""
REFERENCE = "reference"
AGAIN = "again"
"""The reference a second time: tensors whose bits differ even then cannot be used to judge a plan."""
PLANS = (REFERENCE, AGAIN, "auto", "segmented", "carry", "inline", "fold")
WIDTHS = ("narrow", "real")
_DEFAULT_PLANS = ("reference", "again", "auto", "segmented", "carry", "inline")
_AGAINST = {"saved": 2**-30, "peak": 2**-30, "step": 1.0}
_NAMES_KEPT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySpec(Place):
    """One process of the benchmark.

    Attributes:
        model: one of ``MODELS``.
        plan: ``"reference"`` or ``"again"`` for no recompute, else ``FusionCache``'s ``residual``.
        budget: ``FusionCache``'s ``memory_budget`` in MiB; None for none.
        layers: of the model; None for the number in its configuration.
        sequence: tokens per row of the input.
        batch: rows of the input.
        width: of the model, one of ``WIDTHS``.
        steps: timed steps after the first, and as many untimed ones before these.
    """

    model: str
    plan: str
    budget: int | None
    layers: int | None
    sequence: int
    batch: int
    width: str
    steps: int

    @property
    def name(self) -> str:
        """The name of the point among those of its model."""
        return self.plan if self.budget is None else f"{self.plan}, {self.budget} MiB"

    def options(self) -> dict[str, Any]:
        """Returns the options of ``FusionCache`` for this plan."""
        if self.plan in (REFERENCE, AGAIN):
            return {}
        budget = None if self.budget is None else self.budget * 2**20
        return {"recompute": "residual", "residual": self.plan, "memory_budget": budget}

    def __str__(self) -> str:
        return f"{self.model}, {self.name}"


_NO_WINDOW: dict[str, object] = {"sliding_window_size": None, "sliding_window_indices": [0] * 1024}
"""The second item is for narrow models, which get a window regardless of the first."""
_CHANGES = {**_NO_WINDOW, "padded_vocab_size": 512, "final_logit_softcapping": None}
_SCALE = 1e-2


@dataclass(frozen=True, slots=True)
class Work:
    """A model to train.

    Attributes:
        workload: the model and its tokens.
        cotangent: the gradient that the backward pass starts from.
    """

    workload: zoo.Workload
    cotangent: torch.Tensor

    def forward(self, compiled: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Runs the forward pass of the compiled model."""
        return compiled(*self.workload.inputs)

    def backward(self, output: torch.Tensor) -> None:
        """Runs the backward pass, which leaves gradients in the model's parameters."""
        output.backward(self.cotangent)

    def clear(self) -> None:
        """Drops the gradients, so that the next step does not add to them."""
        self.workload.model.zero_grad(set_to_none=True)


def make_work(spec: MemorySpec) -> Work:
    """Returns the work of a specification, from a fixed seed."""
    size: Any = {"sequence": spec.sequence, "batch": spec.batch, "changes": _CHANGES}
    # On the device from the start: making billions of random weights on the CPU takes minutes.
    with torch.device(spec.device):
        workload = zoo.make(spec.model, spec.layers, spec.device, spec.dtype, cast(Any, spec.width), **size)
        model: Any = workload.model
        model.lm_head = torch.nn.Identity()
        # Not constant: the model ends with a norm, whose gradient would vanish.
        shape = *workload.inputs[0].shape, model.config.n_embd
        return Work(workload, _SCALE * torch.randn(shape, dtype=getattr(torch, spec.dtype)))


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns bytes, seconds, choices and digests of one point."""
    spec = MemorySpec.read(options)
    use_deterministic_algorithms(True, warn_only=True)
    warm_up(WAYS["fusioncache"], spec.backend, spec.device, spec.dtype)
    work = make_work(spec)
    transform = make_transform(spec.backend, **spec.options())
    compiled = work.workload.compile(executors(spec.backend), [transform])
    found = _first_step(spec, work, compiled)
    found |= _counts(transform)
    found["steady"] = measure_later(
        lambda: work.backward(work.forward(compiled)), work.clear, device=spec.device, steps=spec.steps
    )
    later = transform.stats().compiles - found["compiles"]
    return found | {"compiles_later": later, "layers": work.workload.layers}


def _first_step(spec: MemorySpec, work: Work, compiled: Any) -> dict[str, Any]:
    model = work.workload.model
    saved = Saved([*model.parameters(), *model.buffers(), *work.workload.inputs])
    synchronize(spec.device)
    start = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        output = work.forward(compiled)
    work.backward(output)
    synchronize(spec.device)
    total = time.perf_counter() - start
    tensors = name_results(model, output)
    with ThreadPoolExecutor() as pool:  # gradients are gigabytes
        found = dict(zip(tensors, pool.map(digest, tensors.values()), strict=True))
    return {
        "first_step": total,
        "saved": saved.size,
        "saved_tensors": saved.count,
        "weights": sum(parameter.nbytes for parameter in model.parameters()),
        "digests": found,
        "not_finite": [name for name, tensor in tensors.items() if not tensor.isfinite().all()],
    }


class Saved:
    """Counts the bytes of storages saved for backward. All are alive until then, so that addresses identify them.

    Args:
        others: tensors that stay alive anyway, whose storages do not count.
    """

    def __init__(self, others: Iterable[torch.Tensor]):
        self.size = 0
        self.count = 0
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in others}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Counts a tensor, as a hook of ``saved_tensors_hooks``. Returns the tensor unchanged."""
        self.count += 1
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.size += storage.nbytes()
        return tensor


def _counts(transform: Any) -> dict[str, Any]:
    """Returns the counts and the choices of a transform."""
    stats = transform.stats()
    return {
        "regions": stats.regions,
        "templates": stats.templates,
        "compiles": stats.compiles,
        "compile_seconds": stats.compile_seconds,
        "canonicalize_seconds": stats.canonicalize_seconds,
        "bypasses": dict(stats.bypasses),
        "choices": describe_choices(transform.choices()),
    }


def describe_choices(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """Returns each choice as JSON."""
    return [
        {
            "stream": choice.stream,
            "sums": choice.sums,
            "plan": choice.plan.value,
            "costs": {plan.value: asdict(cost) for plan, cost in choice.costs.items()},
        }
        for choice in choices
    ]


def name_plans(choices: Iterable[Mapping[str, Any]]) -> str:
    """Returns the names of the chosen plans, without duplicates."""
    return ", ".join(dict.fromkeys(choice["plan"] for choice in choices)) or "-"


@benchmark(__doc__, needs_litgpt=True)
@click.option("--models", type=Words(tuple(MODELS)), default=tuple(MODELS), help="As in olmo-2,gemma-2.")
@click.option("--layers", type=click.IntRange(min=1), help="Of each model.  [default: as in its configuration]")
@count_option("--sequence", 4096, "Tokens in a row of the input.")
@count_option("--batch", 1, "Rows of the input.")
@click.option("--width", type=click.Choice(WIDTHS), default="real", help="real: the configuration's own.")
@click.option("--plans", type=Words(PLANS), default=_DEFAULT_PLANS, help="The reference is always there.")
@click.option("--budgets", type=Numbers(), help="MiB of sums alive, each with plan auto.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="bfloat16")
@count_option("--steps", 10, "Later steps to time, after as many untimed.")
@limit_option
def main(
    run: Run, models: Sequence[str], plans: Sequence[str], budgets: Sequence[int] | None, dtype: str, **options: Any
) -> None:
    """Runs the benchmark."""
    common = {**run.machine.place(dtype=dtype), **options}
    for model in models:
        reference: Point | None = None
        for plan, budget in list_plans(plans, budgets or ()):
            spec = MemorySpec(model=model, plan=plan, budget=budget, **common)
            identity = {"model": model, "name": spec.name, "plan": plan, "budget": budget, "dtype": dtype}
            point = run.measure(identity, "benchmarks.memory:measure", asdict(spec))
            if "error" not in point:
                print_progress(f"{spec}: step {1e3 * point['steady']['step']:.1f} ms\n")
                reference = point if plan == REFERENCE else reference
                point = compare_plans(point, reference)
            run.add(point)
    columns = {
        "<model": pick("model"),
        "<plan": pick("name"),
        "<chosen": lambda point: name_plans(point["choices"]),
        "saved": lambda point: format_gibibytes(point["saved"]),
        "peak": lambda point: format_gibibytes(point["steady"]["peak"]),
        **{f"{name}, to the reference": pick("against", name, scale=scale) for name, scale in _AGAINST.items()},
        "step, ms": pick("steady", "step", scale=1e3, digits=1),
        "compiles": lambda point: str(point["compiles"] + point["compiles_later"]),
        "bitwise": format_bitwise,
    }
    for point in run.points:
        run.notes += [f"differs: {point['model']}, {point['name']}: {name}" for name in point.get("differing", ())]
    run.finish(
        "recompute of the residual stream", columns, "GiB; bitwise: output and gradients that are the reference's"
    )


def list_plans(plans: Sequence[str], budgets: Sequence[int]) -> list[tuple[str, int | None]]:
    """Returns the plans of a model with their budgets: the reference first, even if not requested."""
    return [*((plan, None) for plan in dict.fromkeys((REFERENCE, *plans))), *(("auto", budget) for budget in budgets)]


def compare_plans(point: Point, reference: Point | None) -> Point:
    """Returns a point with its bitwise comparison to the reference, and the differences in memory and time."""
    digests = point["digests"]
    expected = digests if reference is None else reference["digests"]
    differing = [name for name in dict.fromkeys([*expected, *digests]) if digests.get(name) != expected.get(name)]
    found = {**point, "tensors": len(digests), "not_finite": point["not_finite"][:_NAMES_KEPT], "against": None}
    if reference is None:
        return {**found, "bitwise": None, "differing": []}
    ours, theirs = point["steady"], reference["steady"]
    peak = None if ours["peak"] is None or theirs["peak"] is None else theirs["peak"] - ours["peak"]
    trade = {"saved": reference["saved"] - point["saved"], "peak": peak, "step": ours["step"] / theirs["step"]}
    same = {"correct": not differing, "bitwise": len(digests) - len(differing), "differing": differing[:_NAMES_KEPT]}
    return {**found, **same, "against": trade}


def format_gibibytes(size: int | None) -> str:
    """Returns a size in GiB with two decimals."""
    return "-" if size is None else f"{size / 2**30:.2f}"


def format_bitwise(point: Mapping[str, Any]) -> str:
    """Returns how many tensors have the reference's bits."""
    return "-" if point["bitwise"] is None else f"{point['bitwise']} of {point['tensors']}"


if __name__ == "__main__":
    main()
