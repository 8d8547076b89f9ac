"""Real models, narrow and on the CPU: every bit stays as it was, and another layer brings no new template.

``benchmarks/equality`` does this at real depth, with other compilers, on a GPU.
"""

import shutil

import pytest
import torch

from benchmarks import zoo
from benchmarks.common.counting import count_folds, use_backend
from benchmarks.common.tensors import compare
from benchmarks.common.thunder_jit import executors, make_transform
from benchmarks.equality.training import train
from fusioncache.transform import executor, sharing

GROWN = {"llama-2", "gemma-2"}
"""Models that are traced with one more layer as well. On a GPU all are, at real depth."""
ALIKE = {"falcon", "phi", "gemma", "stablelm", "gpt2-like", "llama-3", "mistral", "hf-llama"}
"""Models whose parts others have: ``benchmarks/equality`` is enough for them, and TorchInductor here."""


def use(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Dynamo counts all models that go through one forward function, and at 8 it leaves the next one uncompiled.
    torch.compiler.reset()
    for module, name in ((executor, "best_backend"), (sharing, "choose_plan")):
        monkeypatch.setattr(module, name, getattr(module, name))  # to be put back
    use_backend(backend)


def make(name: str, layers: int | None) -> zoo.Workload:
    pytest.importorskip(zoo.find_entry(name).package)
    return zoo.make(name, layers)


def trained(workload, backend):
    """Returns the results of a training step with fusioncache, and the stats."""
    cache = make_transform(backend)
    compiled = workload.compile(executors(backend), [cache])
    return train(workload, compiled, start_of(workload)), cache.stats()


def start_of(workload):
    return {name: value.detach().clone() for name, value in workload.model.state_dict().items()}


def assert_every_bit(workload, found, backend):
    """Asserts equality with Thunder without fusioncache, which starts from newly computed parameters."""
    again = zoo.make(workload.name, workload.layers)
    expected = train(again, again.compile(executors(backend)), start_of(again))
    parameters = dict(again.model.named_parameters())
    assert {f"gradient of {name}" for name in parameters} <= expected.keys()
    result = compare(found, expected, expected)
    assert not result["differing"] and not result["not_finite"]
    assert result["tensors"] == 3 + 2 * len(parameters)


# One test for all assertions about a model, because each of its traces takes seconds.
@pytest.mark.parametrize("name", [name for name in zoo.names() if name not in ALIKE])
def test_training_keeps_every_bit_and_depth_brings_no_templates(name, monkeypatch):
    use("eager", monkeypatch)
    folds = count_folds()
    depth = zoo.find_entry(name).steady
    workload = make(name, depth)
    found, shallow = trained(workload, "eager")
    assert_every_bit(workload, found, "eager")
    assert all(reason.startswith("not given to Thunder") for reason in shallow.bypasses)
    if name in GROWN:
        _, deep = trained(zoo.make(name, depth + 1), "eager")
        assert deep.templates == shallow.templates
        assert deep.hits - shallow.hits == deep.regions - shallow.regions > 0
        assert deep.bypasses == shallow.bypasses
    assert folds() == 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")
def test_training_with_inductor_keeps_every_bit(monkeypatch):
    use("inductor", monkeypatch)
    workload = make("llama-3", 1)
    found, stats = trained(workload, "inductor")
    assert_every_bit(workload, found, "inductor")
    assert stats.compiles == stats.templates < stats.regions
    assert not stats.bypasses
