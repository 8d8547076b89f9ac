"""A model like Llama, and how each peer shares it among ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from benchmarks.common.thunder_jit import executors, make_transform
from benchmarks.sequence_parallel.spec import WIDTHS, JobSpec, Width

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
