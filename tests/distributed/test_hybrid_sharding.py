"""Four ranks in a mesh of two by two, over gloo: two copies of a model, each sharded over two ranks."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.distributed.checkpoint as checkpoint
from models import are_same
from sharded_training import TiedModel, count_saved, describe, make_options, run_ranks, take_step
from torch.distributed.device_mesh import init_device_mesh

import fusioncache.distributed as distributed
from fusioncache.accelerators.schedule.order import LEAD
from fusioncache.distributed.sharing import move_tied_model

COPIES, SHARDS, VOCABULARY, STEPS = 2, 2, 33, 2
MODES = {"zero2": False, "zero3": True}
CPU = torch.device("cpu")


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return TiedModel(VOCABULARY).double()


def draw_tokens(rank: int, step: int) -> torch.Tensor:
    torch.manual_seed(100 * rank + step)
    return torch.randint(0, VOCABULARY, (2, 8))


def train_all(rank: int, folder: Path) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (COPIES, SHARDS), mesh_dim_names=("replicate", "shard"))
    ways = {f"{mode} {order}": (mesh, mode, order) for mode in MODES for order in ("auto", "thunder")}
    ways["one copy"] = mesh["shard"], "zero3", "auto"
    return {name: train_one(rank, *way, folder) for name, way in ways.items()}


def train_one(rank: int, mesh: Any, mode: str, order: str, folder: Path) -> dict[str, Any]:
    options = make_options(schedule=order)
    jitted = distributed.fsdp(make_model(), mesh, reshard=MODES[mode], device=CPU, **options)
    trained = [parameter for parameter in jitted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    values = []
    for step in range(STEPS):
        values += [take_step(jitted, draw_tokens(rank, step)), distributed.clip_grad_norm_(jitted, 0.5)]
        optimizer.step()
        optimizer.zero_grad()
    # Thunder calls a buffer of the module itself ".scale".
    weights = {name.removeprefix("."): tensor.clone() for name, tensor in jitted.original_state_dict().items()}
    if order == "auto" and mesh.ndim == 2:
        checkpoint.save({"model": distributed.state_dict(jitted)}, checkpoint_id=folder / mode)
    return {"values": values, "weights": weights, **describe(jitted)}


def train_alone() -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Returns gradient norms and weights of one process that computes the rows of all ranks."""
    model = make_model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    norms = []
    for step in range(STEPS):
        for rank in range(COPIES * SHARDS):
            take_step(model, draw_tokens(rank, step))
        for parameter in trained:
            parameter.grad /= COPIES * SHARDS
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 0.5))
        optimizer.step()
        optimizer.zero_grad()
    return norms, model.state_dict()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def trained(folder):
    return run_ranks(partial(train_all, folder=folder), COPIES * SHARDS)


@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_learn_what_one_process_does(trained, mode):
    norms, weights = train_alone()
    for rank in trained:
        found = rank[f"{mode} auto"]
        assert torch.allclose(torch.stack(found["values"][1::2]).double(), torch.stack(norms), rtol=1e-6)
        assert weights.keys() - found["weights"].keys() == {"head.weight"}  # which is the embedding's
        for name, weight in found["weights"].items():
            torch.testing.assert_close(weight, weights[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_every_bit_is_that_of_thunders_order_and_of_the_other_copy(trained, mode):
    for rank in trained:
        ours, thunders = rank[f"{mode} auto"], rank[f"{mode} thunder"]
        assert are_same(ours["values"], thunders["values"])
        assert are_same([*ours["weights"].values()], [*thunders["weights"].values()])
        assert are_same([*ours["weights"].values()], [*trained[0][f"{mode} auto"]["weights"].values()])
        assert not ours["bypasses"]


def test_gathers_stay_in_a_copy_and_each_shard_is_averaged_once_with_the_other_copy(trained):
    for mode in MODES:
        first, *others = [rank[f"{mode} auto"]["sequence"] for rank in trained]
        assert others == [first] * 3
        counts = [sum(call.startswith(f"reduce {kind}") for call in first) for kind in ("reduce_s", "all_r")]
        assert counts[0] == counts[1] > 0
    assert all(rank["zero3 auto"]["saved"] == 0 < rank["zero2 auto"]["saved"] for rank in trained)


@pytest.mark.parametrize("mode", MODES)
def test_what_copies_average_travels_while_gradients_are_computed(trained, mode):
    """In Thunder's order all of it is after the last gradient."""
    for order, early in (("auto", True), ("thunder", False)):
        calls = trained[0][f"{mode} {order}"]["backward"]
        last = max(place for place, call in enumerate(calls) if call.endswith("embedding_backward"))
        averaged = [place for place, call in enumerate(calls) if call.startswith("reduce all_reduce")]
        # The embedding's gradient is the last one, and its reduce cannot start before it.
        assert sum(place < last for place in averaged) == (len(averaged) - LEAD - 1 if early else 0)


def test_a_mesh_of_one_dimension_has_one_copy_for_each_row(trained):
    """The rows of the mesh get different tokens, and do not communicate."""
    weights = [list(rank["one copy"]["weights"].values()) for rank in trained]
    assert not any("all_reduce" in call for rank in trained for call in rank["one copy"]["sequence"])
    assert are_same(weights[0], weights[1]) and are_same(weights[2], weights[3])
    assert not are_same(weights[0], weights[2])


@pytest.mark.parametrize("mode", MODES)
def test_a_process_loads_what_two_copies_saved(trained, folder, mode):
    state = {"model": {name: torch.zeros_like(tensor) for name, tensor in make_model().state_dict().items()}}
    checkpoint.load(state, checkpoint_id=folder / mode, no_dist=True)
    expected = trained[0][f"{mode} auto"]["weights"]
    assert all(torch.equal(state["model"][name], tensor) for name, tensor in expected.items())
    assert torch.equal(state["model"]["head.weight"], expected["embedding.weight"])


def train_one_copy_on_gpus(rank: int) -> dict[str, Any]:
    mesh = init_device_mesh("cuda", (1, SHARDS), mesh_dim_names=("replicate", "shard"))
    found = {}
    for name, given in {"hybrid": mesh, "shared": mesh["shard"]}.items():
        model, device = make_model().cuda(), torch.device("cuda", rank)
        jitted = distributed.fsdp(model, given, device=device, **make_options(backend="auto"))
        torch.manual_seed(rank)
        tokens = torch.randint(0, VOCABULARY, (2, 8), device=device)
        loss = jitted(tokens).square().mean()
        loss.backward()
        gradients = [parameter.grad for parameter in jitted.parameters() if parameter.grad is not None]
        saved = count_saved(thunder.last_traces(jitted)[-1])
        found[name] = {"values": [value.cpu() for value in (loss.detach(), *gradients)], "saved": saved}
    return found


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < SHARDS, reason="it takes two GPUs")
def test_one_copy_in_a_mesh_of_two_dimensions_is_a_shared_model():
    """Two copies would take four GPUs: this shows that shards are saved if nvFuser makes the regions."""
    for rank in run_ranks(train_one_copy_on_gpus, SHARDS, backend="nccl"):
        assert are_same(rank["hybrid"]["values"], rank["shared"]["values"])
        assert rank["hybrid"]["saved"] == rank["shared"]["saved"] == 0


@pytest.mark.parametrize(("tied", "made_on", "moved"), [(True, "cpu", [CPU]), (False, "cpu", []), (True, "meta", [])])
def test_a_model_that_ties_parameters_is_moved_before_thunder_raises(monkeypatch, tied, made_on, moved):
    with torch.device(made_on):
        model = TiedModel(VOCABULARY) if tied else torch.nn.Linear(2, 2)
    seen: list[torch.device] = []
    monkeypatch.setattr(type(model), "to", lambda self, device: seen.append(device))
    move_tied_model(model, CPU)
    assert seen == moved
