"""A model like Llama whose layers and sequences are sharded across ranks, by fusioncache or by torch.

litgpt's Llama computes query, key and value in one layer, which ``parallelize_module`` cannot shard by heads.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from benchmarks.common.models import LLAMA, SEED, make_config, make_tokens
from benchmarks.common.thunder_jit import executors, make_transform
from benchmarks.distributed.spec import PointSpec

_COLUMN, _ROW, _GATHERED = ("embedding", "*.q", "*.k", "*.v", "*.gate", "*.up"), ("*.proj", "*.down"), ("head",)


class Attention(nn.Module):
    """Attention that derives its number of heads from the number of features: all heads, or those of one rank."""

    def __init__(self, config: Any):
        super().__init__()
        self.head_size = config.n_embd // config.n_head
        self.q, self.k, self.v, self.proj = (nn.Linear(config.n_embd, config.n_embd, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output of attention."""
        query, key, value = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        found = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        projected: torch.Tensor = self.proj(found.reshape(found.shape[0], found.shape[1], -1))
        return projected

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self.head_size).transpose(1, 2)


class Gated(nn.Module):
    """A gated MLP."""

    def __init__(self, config: Any):
        super().__init__()
        self.gate, self.up = (nn.Linear(config.n_embd, config.intermediate_size, bias=False) for _ in range(2))
        self.down = nn.Linear(config.intermediate_size, config.n_embd, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output of the MLP."""
        given: torch.Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return given


class Block(nn.Module):
    """Attention and MLP, each after a norm and added to the residual stream."""

    def __init__(self, config: Any):
        super().__init__()
        self.before, self.between = nn.RMSNorm(config.n_embd), nn.RMSNorm(config.n_embd)
        self.attention, self.gated = Attention(config), Gated(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the residual stream."""
        x = x + self.attention(self.before(x))
        summed: torch.Tensor = x + self.gated(self.between(x))
        return summed


class Model(nn.Module):
    """An embedding, blocks and a head, with the widths of a litgpt configuration."""

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.padded_vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def make_model(spec: PointSpec) -> tuple[Model, torch.Tensor]:
    """Returns a model and its tokens, both the same on each rank."""
    torch.manual_seed(SEED)
    with torch.device(spec.device):
        model = Model(make_config(LLAMA, spec.layers, spec.device, spec.width)).to(getattr(torch, spec.dtype))
    return model, make_tokens(model, (2, 1, spec.tokens), spec.device)


def share_by_fusioncache(model: Model, spec: PointSpec) -> tuple[Any, Any]:
    """Returns a compiled model that contains this rank's shard, and its transform."""
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
    return jitted, transform


def share_by_torch(model: Model, spec: PointSpec) -> Any:
    """Returns a model that torch shards and compiles, with its pass that fuses collectives with matrix products.

    It is sharded as in torch's tutorials: the stream along its sequence, and one gather for all layers with one input.
    """
    from torch._inductor import config
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = init_device_mesh(spec.device, (distributed.get_world_size(),))
    if spec.device == "cuda":
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # none of this needs NVLink's multicast
        enable_symm_mem_for_group(mesh.get_group().group_name)
        config._micro_pipeline_tp = True
    parallelize_module(model, mesh, _plan(spec.layers))
    return torch.compile(model)


def _plan(layers: int) -> dict[str, Any]:
    """Returns torch's parallel style of each module, by name."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

    rows, whole = Shard(1), Replicate()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=rows),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=rows, output_layouts=whole),
    }
    for number in range(layers):
        taking = PrepareModuleInput(input_layouts=(rows,), desired_input_layouts=(whole,))
        block = {name: SequenceParallel() for name in ("before", "between")}
        block |= dict.fromkeys(("attention", "gated"), taking)
        block |= {f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")}
        block |= {f"gated.{name}": ColwiseParallel() for name in ("gate", "up")}
        block |= {name: RowwiseParallel(output_layouts=rows) for name in ("attention.proj", "gated.down")}
        plan |= {f"blocks.{number}.{name}": style for name, style in block.items()}
    return plan
