"""The models of ``benchmarks/first_step``: narrow ones, and Llama-2-7b at its own width."""

from __future__ import annotations

import gc

import torch
from torch import nn

from benchmarks.common.models import make_model
from benchmarks.first_step.spec import PointSpec
from benchmarks.peers.spec import PeerSpec
from benchmarks.peers.work import make_work

_REAL = "Llama-2-7b-hf"
_TOKENS = 2048


def make_point_model(spec: PointSpec) -> tuple[nn.Module, torch.Tensor]:
    """Returns the model on its device, and its input.

    What imports left is collected now: to look through all of it in the middle of a first step takes 0.2 s, and whose
    step that would be is chance.
    """
    model, example = _make_model(spec)
    gc.collect()
    return model, example


def _make_model(spec: PointSpec) -> tuple[nn.Module, torch.Tensor]:
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
