"""What a training step costs of a model whose layers and sequences ranks share, at one length after the other.

All ranks take the same steps of a model like Llama: forward, cross entropy, backward. ``plain`` is fusioncache's
tensor_parallel(sequence=True), and ``torch`` is parallelize_module with torch.compile and its pass that joins exchanges
with products. Losses of both have to be close.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import click
import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from benchmarks.common.counting import use_backend
from benchmarks.common.job import run_job
from benchmarks.common.options import (
    Numbers,
    Variable,
    Words,
    backend_option,
    command,
    count_option,
    json_option,
    layers_option,
    limit_option,
)
from benchmarks.common.processes import ProcessFailed, say
from benchmarks.common.runner import Point, begin, describe_failure, pick
from benchmarks.common.steps import synchronize
from benchmarks.common.thunder_jit import executors, make_transform

_CLOSE = 0.02
"""By which part losses of two peers may differ: in bfloat16 each rounds in an order of its own."""
_VARIABLES = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""Of the environment, unless it is set otherwise: none of this needs NVLink's multicast."""

PEERS: Mapping[str, str] = MappingProxyType(
    {
        "plain": "fusioncache",
        "torch": "torch's parallelize_module and torch.compile, with its pass that joins exchanges with products",
    }
)


@dataclass(frozen=True, slots=True)
class Width:
    """How large a model is.

    Attributes:
        features: of the residual stream.
        gated: features of the gated product.
        heads: of attention.
        vocabulary: how many tokens there are.
    """

    features: int
    gated: int
    heads: int
    vocabulary: int


WIDTHS: Mapping[str, Width] = MappingProxyType(
    {"narrow": Width(64, 176, 4, 512), "real": Width(4096, 11008, 32, 32000)}
)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job: a peer, which takes steps at one length after the other.

    Attributes:
        peer: one of ``PEERS``.
        width: one of ``WIDTHS``.
        layers: of the model.
        batch: how many sequences.
        lengths: of them, in the order in which they come.
        backend: of fusioncache: ``"nvfuser"``, ``"inductor"`` or ``"eager"``.
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of weights and activations, by torch's name.
        steps: timed ones at each length.
        warmup: untimed ones between the first and those.
    """

    peer: str
    width: str
    layers: int
    batch: int
    lengths: tuple[int, ...]
    backend: str
    device: str
    dtype: str
    steps: int
    warmup: int


_COLUMN, _ROW, _GATHERED = ("embedding", "*.q", "*.k", "*.v", "*.gate", "*.up"), ("*.proj", "*.down"), ("head",)


class Attention(nn.Module):
    """Attention whose heads are as many as there are features for: all of them, or those of one rank."""

    def __init__(self, width: Width):
        super().__init__()
        self.head_size = width.features // width.heads
        self.q, self.k, self.v, self.proj = (nn.Linear(width.features, width.features, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what it finds for each row."""
        query, key, value = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        found = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        projected: torch.Tensor = self.proj(found.reshape(found.shape[0], found.shape[1], -1))
        return projected

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self.head_size).transpose(1, 2)


class Gated(nn.Module):
    """The gated product."""

    def __init__(self, width: Width):
        super().__init__()
        self.gate, self.up = (nn.Linear(width.features, width.gated, bias=False) for _ in range(2))
        self.down = nn.Linear(width.gated, width.features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the product."""
        given: torch.Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return given


class Block(nn.Module):
    """Both, each behind a norm and added to the residual stream."""

    def __init__(self, width: Width):
        super().__init__()
        self.before, self.between = nn.RMSNorm(width.features), nn.RMSNorm(width.features)
        self.attention, self.gated = Attention(width), Gated(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the stream."""
        x = x + self.attention(self.before(x))
        summed: torch.Tensor = x + self.gated(self.between(x))
        return summed


class Model(nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self, width: Width, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(width.vocabulary, width.features)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width.features)
        self.head = nn.Linear(width.features, width.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True, slots=True)
class Shared:
    """A model as one rank has it.

    Attributes:
        call: runs it.
        parameters: those of this rank.
        compiles: how many compilations there were so far.
        bypasses: what fusioncache left as it was, and how often.
    """

    call: Callable[[torch.Tensor], torch.Tensor]
    parameters: list[nn.Parameter]
    compiles: Callable[[], int]
    bypasses: Callable[[], Mapping[str, int]] = field(default=dict)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Runs a forward and a backward pass; leaves gradients in the parameters. Returns the loss."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = nn.functional.cross_entropy(self.call(tokens).flatten(0, -2).float(), tokens.roll(1, 1).flatten())
        loss.backward()
        return loss.detach()


def share_model(spec: JobSpec) -> Shared:
    """Makes a model, the same on each rank, and shares it."""
    torch.manual_seed(0)
    with torch.device(spec.device):
        model = Model(WIDTHS[spec.width], spec.layers).to(getattr(torch, spec.dtype))
    return _by_torch(model, spec) if spec.peer == "torch" else _by_fusioncache(model, spec)


def _by_fusioncache(model: Model, spec: JobSpec) -> Shared:
    from fusioncache.distributed import tensor_parallel

    given: dict[str, Any] = {"backend": spec.backend, "cache": make_transform(spec.backend).cache}
    jitted = tensor_parallel(
        model,
        column=_COLUMN,
        row=_ROW,
        gathered=_GATHERED,
        sequence=True,
        release=True,
        executors=executors(spec.backend),
        **given,
    )
    (transform,) = (one for one in jitted._lc_transforms if hasattr(one, "stats"))
    return Shared(
        jitted,
        list(jitted.parameters()),
        lambda: int(transform.stats().compiles),
        lambda: dict(transform.stats().bypasses),
    )


def _by_torch(model: Model, spec: JobSpec) -> Shared:
    """Shares as torch's tutorials do: the stream along its sequence, and one gather for all that take the same."""
    from torch._dynamo import config as dynamo_config
    from torch._dynamo import utils
    from torch._inductor import config
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(spec.device, (distributed.get_world_size(),))
    if spec.device == "cuda":
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        enable_symm_mem_for_group(mesh.get_group().group_name)
        config._micro_pipeline_tp = True
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, 64)
    rows, whole = Shard(1), Replicate()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=rows),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=rows, output_layouts=whole),
    }
    for number in range(spec.layers):
        taking = PrepareModuleInput(input_layouts=(rows,), desired_input_layouts=(whole,))
        block = {name: SequenceParallel() for name in ("before", "between")}
        block |= dict.fromkeys(("attention", "gated"), taking)
        block |= {f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")}
        block |= {f"gated.{name}": ColwiseParallel() for name in ("gate", "up")}
        block |= {name: RowwiseParallel(output_layouts=rows) for name in ("attention.proj", "gated.down")}
        plan |= {f"blocks.{number}.{name}": style for name, style in block.items()}
    parallelize_module(model, mesh, plan)
    utils.counters.clear()
    return Shared(torch.compile(model), list(model.parameters()), lambda: int(utils.counters["stats"]["unique_graphs"]))


def measure(argument: Mapping[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    """Yields what this rank measures at one length after the other."""
    spec = JobSpec(**{**argument, "lengths": tuple(argument["lengths"])})
    use_backend(spec.backend)
    shared = share_model(spec)
    for number, length in enumerate(spec.lengths):
        yield measure_length(spec, shared, number, length)


def measure_length(spec: JobSpec, shared: Shared, number: int, length: int) -> dict[str, Any]:
    """Returns seconds of the first step at a length, milliseconds of later ones, bytes, and counts."""
    torch.manual_seed(number)
    tokens = torch.randint(0, WIDTHS[spec.width].vocabulary, (spec.batch, length), device=spec.device)
    start = _start(spec)
    loss = float(shared.step(tokens))
    synchronize(spec.device)
    first = time.perf_counter() - start
    for _ in range(spec.warmup):
        shared.step(tokens)
    gc.collect()
    if spec.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(spec.steps):
        start = _start(spec)
        shared.step(tokens)
        synchronize(spec.device)
        times.append(1e3 * (time.perf_counter() - start))
    return {
        "loss": loss,
        "first_step": first,
        "step_ms": median(times),
        "fastest_ms": min(times),
        "slowest_ms": max(times),
        "bytes_peak": torch.cuda.max_memory_allocated() if spec.device == "cuda" else None,
        "compiles": shared.compiles(),
        "bypasses": dict(shared.bypasses()),
    }


def _start(spec: JobSpec) -> float:
    """Waits for the other ranks; returns the time."""
    distributed.barrier()
    synchronize(spec.device)
    return time.perf_counter()


@command(__doc__)
@count_option("--ranks", 2, "Processes.", least=2)
@click.option("--peers", type=Words(tuple(PEERS)), default=tuple(PEERS), help="As in plain,torch.")
@click.option("--width", type=click.Choice(tuple(WIDTHS)), default="narrow")
@layers_option(2)
@count_option("--batch", 1, "Sequences.")
@click.option("--lengths", type=Numbers(), default=(2048, 1536, 1024, 2048), help="In the order in which they come.")
@count_option("--steps", 20, "Timed steps at each length.")
@count_option("--warmup", 5, "Steps before those.", least=0)
@click.option("--env", "variables", type=Variable(), multiple=True, help="NAME=VALUE of the ranks' environment.")
@limit_option
@backend_option()
@json_option
def main(
    json_file: Path | None,
    ranks: int,
    peers: Sequence[str],
    variables: Sequence[tuple[str, str]],
    limit: float | None,
    backend: str,
    **options: Any,
) -> None:
    """Runs the benchmark."""
    chosen = {**{name: os.environ.get(name, value) for name, value in _VARIABLES.items()}, **dict(variables)}
    run = begin(json_file, {**options, "ranks": ranks, "variables": chosen}, backend, limit=limit)
    dtype = run.machine.choose_dtype("llama")
    common = {"backend": run.machine.backend, "device": run.machine.device, "dtype": dtype, **options}
    found: list[Point] = []
    for peer in peers:
        spec, number = JobSpec(peer=peer, **common), -1
        about = [{"peer": peer, "number": place, "length": length} for place, length in enumerate(spec.lengths)]
        job = run_job(
            "benchmarks.sequence_parallel:measure", asdict(spec), ranks, limit=run.time_left(), environment=chosen
        )
        try:
            for number, answers in enumerate(job):
                say(f"{peer}, {spec.lengths[number]} tokens: {max(rank['step_ms'] for rank in answers):.1f} ms\n")
                found.append({**about[number], "ranks": answers})
                run.points = check_losses(found)
                run.save()
        except ProcessFailed as failure:
            found.append(describe_failure(about[min(number + 1, len(about) - 1)], failure))
            run.points = check_losses(found)
    names = ("step_ms", "fastest_ms", "slowest_ms", "first_step", "bytes_peak", "compiles", "loss")
    columns = {"<peer": pick("peer"), "tokens": pick("length"), **{name: _pick_most(name) for name in names}}
    for point in run.points:
        run.notes += [f"{point['peer']}: {reason}" for rank in point.get("ranks", ()) for reason in rank["bypasses"]]
    run.notes = list(dict.fromkeys(run.notes))
    run.finish("training steps of a shared model", columns, "of the rank that has most of each; compiles so far")


def _pick_most(name: str) -> Callable[[Point], str]:
    def cell(point: Point) -> str:
        found = [rank[name] for rank in point["ranks"] if rank[name] is not None]
        return f"{max(found):.4g}" if found else ""

    return cell


def check_losses(points: Sequence[Point]) -> list[Point]:
    """Returns points that say whether the loss of all ranks is close to that of the first peer at the same length."""
    first: dict[int, float] = {}
    checked = []
    for point in points:
        if "error" in point:
            checked.append(point)
            continue
        losses = [rank["loss"] for rank in point["ranks"]]
        expected = first.setdefault(point["number"], losses[0])
        checked.append({**point, "correct": all(abs(one - expected) <= _CLOSE * abs(expected) for one in losses)})
    return checked


if __name__ == "__main__":
    main()
