"""The models of ``benchmarks/first_step``: narrow ones, and Llama-2-7b at its own width."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.common.models import make_model
from benchmarks.first_step.spec import PointSpec
from benchmarks.peers.spec import PeerSpec
from benchmarks.peers.work import make_work

_REAL = "Llama-2-7b-hf"
_TOKENS = 2048


def make_point_model(spec: PointSpec) -> tuple[nn.Module, torch.Tensor]:
    """Returns the model on its device, and its input."""
    if spec.width == "narrow":
        return make_model(spec.model)
    model = spec.model
    work = make_work(
        PeerSpec(
            peer="",
            model=_REAL,
            width="real",
            layers=model.layers,
            sequence=_TOKENS,
            batch=1,
            size=model.size,
            inference=False,
            backend=model.backend,
            device=model.device,
            dtype=model.dtype,
            steps=0,
            warmup=0,
        )
    )
    return work.model, work.example
