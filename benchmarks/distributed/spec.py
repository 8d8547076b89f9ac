"""The peers that the benchmark of shared training steps compares, and the specification of one measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.common.models import Place, count_layers


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to share a training step among devices.

    Attributes:
        name: as in ``--peers``.
        family: the library that shares the model; peers of one family run in the same processes, one after the other.
        sharing: what each device stores. ``zero2``: a shard of each parameter between steps; ``zero3``: also between
            forward and backward; ``ddp``: all parameters; ``hybrid``: as ``zero3``, in each of two halves of the ranks;
            ``sequence``: a shard of each layer and, between layers, of each sequence; sequences are equal on all ranks.
        compiles: whether torch.compile is used.
        order: of collectives, in fusioncache's peers.
        attention: as for ``fusioncache.executors``, in fusioncache's peers.
    """

    name: str
    family: Literal["torch", "thunder", "fusioncache"]
    sharing: Literal["zero2", "zero3", "ddp", "hybrid", "sequence"]
    compiles: bool = False
    order: Literal["auto", "thunder"] = "auto"
    attention: Literal["thunder", "cudnn"] = "thunder"


_ALL = (
    Peer("fsdp2-zero3-compile", "torch", "zero3", compiles=True),
    Peer("fsdp2-zero2-compile", "torch", "zero2", compiles=True),
    Peer("ddp-compile", "torch", "ddp", compiles=True),
    Peer("fsdp2-hybrid-compile", "torch", "hybrid", compiles=True),
    Peer("fsdp2-zero3", "torch", "zero3"),
    Peer("ddp", "torch", "ddp"),
    Peer("fusioncache-zero3", "fusioncache", "zero3"),
    Peer("fusioncache-zero3-cudnn", "fusioncache", "zero3", attention="cudnn"),
    Peer("fusioncache-zero3-thunder-order", "fusioncache", "zero3", order="thunder"),
    Peer("fusioncache-zero2", "fusioncache", "zero2"),
    Peer("fusioncache-zero2-cudnn", "fusioncache", "zero2", attention="cudnn"),
    Peer("fusioncache-zero2-thunder-order", "fusioncache", "zero2", order="thunder"),
    Peer("fusioncache-ddp", "fusioncache", "ddp"),
    Peer("fusioncache-ddp-cudnn", "fusioncache", "ddp", attention="cudnn"),
    Peer("fusioncache-ddp-thunder-order", "fusioncache", "ddp", order="thunder"),
    Peer("fusioncache-hybrid", "fusioncache", "hybrid"),
    Peer("fusioncache-sequence", "fusioncache", "sequence"),
    Peer("torch-sequence", "torch", "sequence", compiles=True),
    Peer("thunder-zero3", "thunder", "zero3"),
    Peer("thunder-zero2", "thunder", "zero2"),
    Peer("thunder-ddp", "thunder", "ddp"),
)
PEERS = {peer.name: peer for peer in _ALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSpec(Place):
    """One measurement, which all ranks of a job make together.

    Attributes:
        peer: one of ``PEERS``.
        width: of the model, one of ``WIDTHS``.
        layers: of the model.
        tokens: in the one row of each rank's input.
        steps: timed steps.
        warmup: untimed steps between the first and the timed ones.
        in_flight_bytes: option of fusioncache's peers; None for the default.
        bucket_bytes: the same.
        share_caches: whether it uses the caches of points before it.
        further: number of shorter lengths measured at the end, down to half as many tokens.
        job: the number of the job, from 1. A later job finds the caches of the jobs before it.
        variables: environment variables that configure communication, such as ``NCCL_P2P_DISABLE``.
    """

    peer: str
    width: str
    layers: int
    tokens: int
    steps: int
    warmup: int
    in_flight_bytes: int | None = None
    bucket_bytes: int | None = None
    share_caches: bool = False
    further: int = 0
    job: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.peer}, {self.width}, {describe_setting(asdict(self))}"

    @property
    def folder(self) -> str:
        """The name of the folder in which this point stores compiled code, the same in every job."""
        return f"{self.peer}-{self.width}-{self.layers}-{self.tokens}"


def describe_setting(point: Mapping[str, Any]) -> str:
    """Returns the setting of a point without its width. Steps with the same setting and width can be compared."""
    variables = [f"{name}={value}" for name, value in sorted(point.get("variables", {}).items())]
    jobs = [f"job {point['job']}"] if point.get("job", 1) > 1 else []
    return ", ".join([count_layers(point["layers"]), f"{point['tokens']} tokens", *jobs, *variables])
