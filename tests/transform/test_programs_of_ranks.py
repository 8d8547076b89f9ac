"""Programs of models that ranks share: made by one job, loaded by another, and made anew where the job is another."""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from program_keys import key_of
from sharded_training import device_of, equal_bits, run_ranks, share
from thunder.core.module import ThunderModule
from thunder.distributed import FSDPBucketingStrategy, FSDPType, fsdp
from thunder.distributed.transforms.fsdp_v2 import FSDPTransform
from torch.testing._internal.distributed.fake_pg import FakeStore

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.options import (
    describe_group,
    find_groups,
    refer_to_group,
    resolve_group,
    write_sharing_key,
)
from fusioncache.accelerators.sizes.lengths import SHARED
from fusioncache.distributed.cut_layers import CutParameter, Role, TensorParallelTransform
from fusioncache.ir import Key
from fusioncache.observe.record.observations import PlacementRecord

MODES = ("zero3", "ddp", "rows")
"""ZeRO3 does all that ZeRO2 does, and more; so does what cuts layers and rows, of what cuts layers alone."""
WIDTH = 6


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(12, WIDTH)
        self.gate, self.up = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return x + self.down(torch.relu(self.gate(x)) * self.up(x))


def share_small(mode: str, group: Any = None) -> Any:
    """Shares the model in one way, with a cache of its own over the store of the directory."""
    on_gpus = torch.distributed.get_backend() == "nccl"
    model = Small().to("cuda" if on_gpus else "cpu")
    cache = fusioncache.Cache(record=False)
    options = {"cache": cache, "backend": "auto" if on_gpus else "eager", "jobs": 0, "programs": True}
    if mode == "rows":
        layers: dict[str, Any] = {"column": ("embedding", "gate", "up"), "row": ("down",)}
        return distributed.tensor_parallel(model, group, sequence=True, **layers, **options)
    transforms = [fusioncache.FusionCache(**options)]
    return share(thunder.jit(model, executors=fusioncache.executors(), transforms=transforms), mode)


def run(rank: int, jitted: Any) -> dict[str, Any]:
    """Runs two steps. Each rank has data of its own where the model is shared by its batch."""
    cut = any(isinstance(one, TensorParallelTransform) for one in jitted._lc_transforms)
    tokens = torch.arange(12, device=device_of(jitted)).reshape(2, 6) + (0 if cut else rank)
    values = []
    for _ in range(2):
        result = jitted(tokens % 12)
        result.square().sum().backward()
        values += [result.detach().cpu(), *(parameter.grad.cpu() for parameter in jitted.parameters())]
        for parameter in jitted.parameters():
            parameter.grad = None
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    stats = transform.stats()
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    return {
        "values": values,
        "counts": (stats.programs_made, stats.programs_loaded),
        "refused": dict(stats.programs_refused),
        "interpreted": dict(stats.programs_interpreted),
        "placed": [len(one.flights) for one in transform.cache.ledger.history.records(PlacementRecord)],
        "calls": [list_functions(trace) for trace in traces],
    }


def list_functions(trace: Any) -> list[str]:
    """Returns the names of the functions that a trace calls, in order; a loaded trace has a text alone."""
    body = trace.python().partition("\ndef ")[2].splitlines()[1:]
    found = (re.match(r"\s+(?:[^#(]* = )?([\w.]+)\(", line) for line in body)
    return [call[1] for call in found if call]


def run_all(rank: int, folder: Path) -> dict[str, Any]:
    os.environ["FUSIONCACHE_DIR"], os.environ["FUSIONCACHE_STORE"] = str(folder), "1"
    return {mode: run(rank, share_small(mode)) for mode in MODES}


def run_later(rank: int, folder: Path) -> dict[str, Any]:
    """Runs the same as before, then a part of it in another group of the same ranks, and at other lengths."""
    found = {**run_all(rank, folder), "same": run(rank, share_small("rows", torch.distributed.new_group([0, 1])))}
    jitted = share_small("rows")
    for length in (8, 4, 2):  # the store has 6, and two ranks have as many rows each
        jitted(torch.arange(2 * length, device=device_of(jitted)).reshape(2, length) % 12)
    return {**found, "lengths": run(rank, jitted)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def made(folder) -> list[dict[str, Any]]:
    return run_ranks(partial(run_all, folder=folder))


@pytest.fixture(scope="module")
def loaded(made, folder) -> list[dict[str, Any]]:
    return run_ranks(partial(run_later, folder=folder))


@pytest.mark.parametrize("mode", MODES)
def test_the_first_job_makes_programs_and_the_second_loads_them_with_the_same_bits_and_calls(made, loaded, mode):
    """One of two ranks puts a program into the store where both derive it, and both load that one."""
    assert any(sum(rank[mode]["counts"]) for rank in made) and all(rank[mode]["counts"][0] <= 1 for rank in made)
    assert [rank[mode]["counts"] for rank in loaded] == [(0, 1)] * 2
    for first, second in zip(made, loaded, strict=True):
        assert not first[mode]["refused"] and not second[mode]["refused"]
        assert len(first[mode]["values"]) > 8
        assert equal_bits(first[mode]["values"], second[mode]["values"])
        assert first[mode]["calls"] == second[mode]["calls"]
        assert first[mode]["placed"] == second[mode]["placed"] and len(first[mode]["placed"]) == 1 + (mode != "ddp")
        # What ranks tell each other before they first run a trace is there as well.
        assert sum("agree_on_collectives" in calls for calls in second[mode]["calls"]) == 1 + (mode != "ddp")


def test_another_group_of_the_same_ranks_uses_the_same_program_and_another_length_of_cut_layers_is_traced(made, loaded):
    for first, second in zip(made, loaded, strict=True):
        assert second["same"]["counts"] == (0, 1)
        assert equal_bits(first["rows"]["values"], second["same"]["values"])
        assert second["lengths"]["interpreted"] == {SHARED: 2}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs")
def test_on_two_gpus_the_second_job_loads_what_the_first_one_made(tmp_path):
    made, loaded = (run_ranks(partial(run_all, folder=tmp_path), backend="nccl") for _ in range(2))
    for first, second in zip(made, loaded, strict=True):
        for mode in MODES:
            assert not first[mode]["refused"] and not second[mode]["refused"]
            # Each GPU has programs of its own, which its number is in.
            assert (first[mode]["counts"], second[mode]["counts"]) == ((1, 0), (0, 1)), mode
            assert equal_bits(first[mode]["values"], second[mode]["values"]), mode
            assert first[mode]["calls"] == second[mode]["calls"]


@pytest.fixture
def job(request) -> Iterator[None]:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("job", [3], indirect=True)
def test_a_group_is_its_ranks_the_size_of_the_job_and_its_libraries(job):
    group = torch.distributed.new_group([0, 2])
    assert describe_group(group).startswith("ranks 0,2 of 3 over cpu:fake,cuda:fake")
    assert describe_group(torch.distributed.new_group([0, 1])) != describe_group(group)
    assert describe_group(torch.distributed.new_group([0, 2])) == describe_group(group)
    assert describe_group(None).startswith("ranks 0,1,2 of 3")
    assert Describer().describe(group) == f"<process group {describe_group(group)}>"


@pytest.mark.parametrize("job", [2], indirect=True)
def test_a_reference_leads_to_the_group_at_its_place_only_if_that_is_the_same(job):
    first, second = torch.distributed.new_group([0, 1]), torch.distributed.new_group([0])
    data = SimpleNamespace(process_group_for_ddp=first, transforms=[SimpleNamespace(process_group=second)])
    assert find_groups(data) == (first, second)
    reference = refer_to_group(second, data)
    assert resolve_group(reference, data) is second
    assert refer_to_group(torch.distributed.new_group([0]), data) is None
    swapped = SimpleNamespace(process_group_for_ddp=second, transforms=[SimpleNamespace(process_group=first)])
    with pytest.raises(ValueError, match="process group 1 is another one: ranks 0,1 of 2"):
        resolve_group(reference, swapped)
    with pytest.raises(ValueError, match="the model has no process group 1"):
        resolve_group(reference, SimpleNamespace(process_group_for_ddp=first, transforms=[]))


@pytest.mark.parametrize("job", [2], indirect=True)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sharding_strategy", FSDPType.ZERO3),
        ("bucketing_strategy", FSDPBucketingStrategy.LAYER),
        ("sharded_params", {"w": ((4, 4), (1, 4), torch.device("cpu"))}),
        ("shared_params_name", {"v": "w"}),
        ("device", torch.device("meta")),
        ("global_rank", 1),
    ],
)
def test_each_attribute_of_a_sharing_transform_but_the_rank_is_in_its_key(job, name, value):
    transform = FSDPTransform(torch.device("cpu"))
    transform.sharded_params, transform.global_rank = {"w": ((4, 4), (2, 4), torch.device("cpu"))}, 0
    before = write_sharing_key(Describer(), transform)
    setattr(transform, name, value)
    assert before and (write_sharing_key(Describer(), transform) == before) == (name == "global_rank")


@pytest.mark.parametrize("job", [2], indirect=True)
def test_the_order_in_which_a_process_has_the_names_of_a_tied_parameter_is_in_no_key(job, monkeypatch):
    shared_names = ThunderModule._get_shared_names

    def key(reverse: bool) -> tuple[Key, list[str]]:
        def name_in_order(self: ThunderModule) -> dict[str, list[str]]:
            return {name: sorted(same, reverse=reverse) for name, same in shared_names(self).items()}

        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3)))
        model[1].weight = model[2].weight = model[0].weight
        with monkeypatch.context() as patch:
            patch.setattr(ThunderModule, "_get_shared_names", name_in_order)
            jitted = fsdp(thunder.jit(model), device=torch.device("cpu"))
        return key_of(jitted, torch.zeros(2, 4)), list(jitted._overrides_parameters)

    (one, names), (other, others) = key(False), key(True)
    assert names != others
    assert one == other


@pytest.mark.parametrize("job", [2], indirect=True)
def test_which_layers_are_cut_and_how_is_in_the_key(job):
    def key(role: Role = Role.COLUMN, dim: int = 0, shape: tuple[int, int] = (4, 4), **rows: bool) -> str:
        parameters = {"gate.weight": CutParameter("gate", role, dim, shape)}
        return TensorParallelTransform(torch.distributed.new_group([0, 1]), parameters, **rows).cache_key()

    assert key() == key()
    cut = {key(), key(role=Role.GATHERED), key(dim=1), key(shape=(4, 6))}
    assert len(cut | {key(of_rows=True)}) == 5
