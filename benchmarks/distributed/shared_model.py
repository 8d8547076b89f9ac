"""A model that the ranks of a job train together, for each peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import fusioncache
import fusioncache.distributed
from benchmarks.common.counting import Counter
from benchmarks.common.models import LLAMA, SEED, make_litgpt, make_tokens
from benchmarks.common.thunder_jit import executors, jit, make_transform
from benchmarks.distributed import sequences
from benchmarks.distributed.spec import PEERS, Peer, PointSpec


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A model and the input of this rank.

    Attributes:
        call: runs the model.
        parameters: that an optimizer of this rank updates.
        tokens: of this rank: the model's input, and the token that follows each.
        compiles: returns the number of compilations so far.
        bypasses: returns the number of regions that fusioncache bypassed, by reason.
        programs: returns the numbers of programs loaded, made and filled in, reasons for others, and seconds.
    """

    call: Callable[[torch.Tensor], torch.Tensor]
    parameters: list[nn.Parameter]
    tokens: torch.Tensor
    compiles: Callable[[], int]
    bypasses: Callable[[], Mapping[str, int]] = field(default=dict)
    programs: Callable[[], Mapping[str, Any]] = field(default=dict)

    def step(self) -> torch.Tensor:
        """Runs a forward and a backward pass, which leaves gradients in the parameters. Returns the loss."""
        logits = self.call(self.tokens[0])
        loss = nn.functional.cross_entropy(logits.flatten(0, -2).float(), self.tokens[1].flatten())
        loss.backward()
        return loss.detach()

    def clear(self) -> None:
        """Drops the gradients, so that the next step does not add to them."""
        for parameter in self.parameters:
            parameter.grad = None


def share_model(spec: PointSpec, rank: int, counter: Counter) -> SharedModel:
    """Returns a model that the ranks share, made with the same weights on each rank.

    Args:
        spec: of the measurement.
        rank: of this process.
        counter: of the compilations of Thunder without fusioncache.
    """
    peer = PEERS[spec.peer]
    model, tokens = sequences.make_model(spec) if peer.sharing == "sequence" else _make_model(spec, rank)
    if peer.family == "torch":
        return _by_torch(peer, spec, model, tokens)
    transform = _make_transform(spec, peer)
    before = counter.compiles
    if peer.sharing == "hybrid":
        jitted, transform = _share_copies(model, spec, peer)
    elif peer.sharing == "sequence":
        jitted, transform = sequences.share_by_fusioncache(model, spec)
    else:
        jitted = share_by_thunder(jit(model, spec.backend, transform, peer.attention), peer.sharing, spec.device)
    parameters = list(jitted.parameters())
    if transform is None:
        return SharedModel(jitted, parameters, tokens, lambda: counter.compiles - before)
    return SharedModel(
        jitted,
        parameters,
        tokens,
        lambda: transform.stats().compiles,
        lambda: dict(transform.stats().bypasses),
        lambda: _count_programs(transform.stats()),
    )


def _count_programs(stats: fusioncache.Stats) -> dict[str, Any]:
    counts = {"loaded": stats.programs_loaded, "made": stats.programs_made, "filled": stats.programs_filled}
    again = {"interpreted": dict(stats.programs_interpreted), "passes repeated": dict(stats.passes_repeated)}
    return {**counts, **again, "refused": dict(stats.programs_refused), "seconds": dict(stats.program_seconds)}


def _make_model(spec: PointSpec, rank: int) -> tuple[nn.Module, torch.Tensor]:
    more = {"block_size": spec.tokens} if spec.width == "narrow" else {}
    model = make_litgpt(LLAMA, spec.layers, spec.device, spec.dtype, width=spec.width, **more)
    return model, make_tokens(model, (2, 1, spec.tokens), spec.device, SEED + 1 + rank)


def _make_transform(spec: PointSpec, peer: Peer) -> fusioncache.FusionCache | None:
    if peer.family != "fusioncache":
        return None
    return make_transform(spec.backend, schedule=peer.order, **_list_bounds(spec))


def _list_bounds(spec: PointSpec) -> dict[str, int | None]:
    return {"in_flight_bytes": spec.in_flight_bytes, "bucket_bytes": spec.bucket_bytes}


def _share_copies(model: nn.Module, spec: PointSpec, peer: Peer) -> tuple[Any, fusioncache.FusionCache]:
    """Returns a compiled model with two copies, each sharded over half of the ranks, and its transform."""
    options: dict[str, Any] = {"backend": spec.backend, "cache": fusioncache.Cache(), **_list_bounds(spec)}
    jitted = fusioncache.distributed.fsdp(
        model,
        _make_mesh(spec.device),
        device=_find_device(spec.device),
        executors=executors(spec.backend, peer.attention),
        schedule=peer.order,
        **options,
    )
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    return jitted, transform


def _make_mesh(device: str) -> Any:
    """Returns a mesh of two copies, each on half of the ranks."""
    return init_device_mesh(device, (2, distributed.get_world_size() // 2), mesh_dim_names=("copies", "shards"))


def share_by_thunder(jitted: Any, sharing: str, device: str) -> Any:
    """Returns a compiled model shared with Thunder's functions: ``"ddp"``, ``"zero2"`` or ``"zero3"``."""
    from thunder.distributed import FSDPType, ddp, fsdp

    if sharing == "ddp":
        return ddp(jitted)
    return fsdp(jitted, device=_find_device(device), sharding_strategy=FSDPType[sharing.upper()])


def _find_device(device: str) -> torch.device:
    """Returns the device of this rank."""
    return torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)


def _by_torch(peer: Peer, spec: PointSpec, model: Any, tokens: torch.Tensor) -> SharedModel:
    """Returns a model that torch shares: with FSDP2, with DDP, or by layers and sequences.

    FSDP2 shards each block alone, as its documentation advises. Each block is also compiled alone, so that gathers stay
    between blocks. Under DDP the whole model is compiled.
    """
    from torch._dynamo import config, utils

    config.recompile_limit = max(config.recompile_limit, 64)
    utils.counters.clear()
    call: Any = model
    if peer.sharing == "sequence":
        call = sequences.share_by_torch(model, spec)
    elif peer.sharing == "ddp":
        device_ids = [torch.cuda.current_device()] if tokens.is_cuda else None
        call = nn.parallel.DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)
        call = torch.compile(call) if peer.compiles else call
    else:
        _share_by_fsdp2(model, peer, tokens.device.type)
    return SharedModel(call, list(model.parameters()), tokens, lambda: int(utils.counters["stats"]["unique_graphs"]))


def _share_by_fsdp2(model: Any, peer: Peer, device: str) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = _make_mesh(device) if peer.sharing == "hybrid" else None
    options = {"mesh": mesh, "reshard_after_forward": peer.sharing != "zero2"}
    for block in model.transformer.h:
        if peer.compiles:
            block.compile()
        fully_shard(block, **options)
    fully_shard(model, **options)
