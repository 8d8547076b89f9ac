"""Programs of distributed models: made by one job, loaded and filled in by another, equal to traced ones.

On two GPUs collectives over NCCL are merged and compute averages, and nvFuser makes the regions.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import thunder
import torch
from program_keys import key_of
from sharded_training import TiedModel, run_ranks, share
from thunder.core.module import ThunderModule
from thunder.distributed import FSDPBucketingStrategy, FSDPType, fsdp
from thunder.distributed.transforms.fsdp_v2 import FSDPTransform
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.options import (
    describe_group,
    find_groups,
    refer_to_group,
    resolve_group,
    write_transform,
)
from fusioncache.accelerators.sizes.lengths import SHARED, Lengths
from fusioncache.distributed.cut_layers import CutParameter, Role, TensorParallelTransform
from fusioncache.ir import Key
from fusioncache.observe.record.observations import PlacementRecord

MODES = ("zero3", "ddp", "hybrid", "rows")
"""ZeRO3 includes all that ZeRO2 does; sharding layers and rows includes all that sharding layers alone does."""
VOCABULARY, WIDTH, LENGTHS = 33, 6, (12, 10, 8)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY + 1, WIDTH)
        self.gate, self.up = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return x + self.down(torch.relu(self.gate(x)) * self.up(x))


def find_device() -> str:
    return "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"


def make_shared(mode: str, group: Any = None, **given: Any) -> Any:
    """Returns a model distributed in one mode; in a mesh each of the two ranks has its own replica."""
    torch.manual_seed(0)
    device, model = find_device(), TiedModel(VOCABULARY)
    backend = "auto" if device == "cuda" else "eager"
    options = {"cache": fusioncache.Cache(record=False), "backend": backend, "jobs": 0, **given}
    if mode == "rows":
        layers: dict[str, Any] = {"column": ("embedding", "gate", "up"), "row": ("down",)}
        return distributed.tensor_parallel(Small().to(device), group, sequence=True, **layers, **options)
    if mode == "hybrid":
        mesh = init_device_mesh(device, (2, 1), mesh_dim_names=("replicate", "shard"))
        where = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        return distributed.fsdp(model, mesh, device=where, **options)
    transforms = [fusioncache.FusionCache(**options)]
    return share(thunder.jit(model.to(device), executors=fusioncache.executors(), transforms=transforms), mode)


def take_step(jitted: Any, seed: int, length: int, *, alone: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (2, length)).to(find_device())
    with jitted.no_sync() if alone else nullcontext():
        loss = jitted(tokens).square().mean()
        loss.backward()
    values = [loss.detach(), *(one.grad.clone() for one in jitted.parameters() if one.grad is not None)]
    jitted.zero_grad(set_to_none=True)
    return values


def write_statements(jitted: Any) -> list[str]:
    """Returns the statements of the final traces, without the numbers that distinguish equal names."""
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    lines = [line.strip() for trace in traces for line in str(trace).split("\n")]
    return [
        re.sub(r"(Group|SUM|memory_format|_[0-9a-f]{8})_\d+", r"\1", line)
        for line in lines
        if line and not line.startswith("#")
    ]


def compare(seed: int, ones: Any, others: Any, length: int, **given: Any) -> tuple[bool, bool]:
    """Takes the same step of two models; returns whether all bits, and whether their programs are equal."""
    pairs = zip(*(take_step(each, seed + length, length, **given) for each in (ones, others)), strict=True)
    return all(torch.equal(*pair) for pair in pairs), write_statements(ones) == write_statements(others)


def describe(jitted: Any) -> dict[str, Any]:
    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    stats = transform.stats()
    return {
        "made": stats.programs_made,
        "loaded": stats.programs_loaded,
        "filled": stats.programs_filled,
        "traced": thunder.cache_misses(jitted),
        "reasons": {**stats.programs_interpreted, **stats.passes_repeated, **stats.programs_refused},
        "placed": [len(one.flights) for one in transform.cache.ledger.history.records(PlacementRecord)],
        "agreements": sum("agree_on_collectives(" in line for line in write_statements(jitted)),
    }


def run_all(rank: int, folder: Path, run_one: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Runs models with stored programs, and models without; ranks that shard layers have one batch."""
    os.environ["FUSIONCACHE_DIR"], os.environ["FUSIONCACHE_STORE"] = str(folder), "1"
    seeds = {mode: 0 if mode == "rows" else 100 * rank for mode in MODES}
    return {
        mode: run_one(rank, seed, mode, make_shared(mode), make_shared(mode, programs=False))
        for mode, seed in seeds.items()
    }


def run_first(rank: int, seed: int, mode: str, kept: Any, traced: Any) -> dict[str, Any]:
    equal = [compare(seed, kept, traced, length) for length in LENGTHS]
    found = {**describe(kept), "all": thunder.cache_misses(traced)}
    if mode != "rows":  # there ranks have as many rows each
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:  # it derives its length, while the other rank fills in another one
                patch.setattr(Lengths, "fill", lambda self, derivation: None)
            equal.append(compare(seed, kept, traced, (7, 9)[rank]))
    equal.append(compare(seed, kept, traced, LENGTHS[0]))
    if mode == "ddp":
        equal.append(compare(seed, kept, traced, LENGTHS[0], alone=True))
    return {**found, "reasons": describe(kept)["reasons"], "equal": equal}


def run_later(rank: int, seed: int, mode: str, kept: Any, traced: Any) -> dict[str, Any]:
    """Loads a length of the first job, and then fills in a new one, unless ranks shard layers."""
    first, loaded = compare(seed, kept, traced, LENGTHS[0]), describe(kept)
    if mode == "rows":
        other = make_shared(mode, torch.distributed.new_group([0, 1]))
        return {"equal": [first, compare(seed, other, traced, LENGTHS[0])], "first": loaded, **describe(other)}
    return {"equal": [first, compare(seed, kept, traced, 13)], "first": loaded, **describe(kept)}


ON_GPUS = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs")]


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=ON_GPUS)])
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def found(backend, tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    return [run_ranks(partial(run_all, folder=folder, run_one=run), backend=backend) for run in (run_first, run_later)]


@pytest.mark.parametrize("mode", MODES)
def test_from_the_third_length_on_nothing_is_traced_and_programs_and_bits_are_those_of_traced_ones(found, mode):
    """Ranks may have different lengths: one fills a program in, another derives one. Sharded layers are traced."""
    for rank in (each[mode] for each in found[0]):
        assert set(rank["equal"]) == {(True, True)}
        # One of two ranks puts a program into the store where both derive it or fill it in.
        known = rank["filled"] + rank["loaded"]
        assert (known + rank["traced"], rank["all"]) == (3, 3), rank["reasons"]
        if mode == "rows":  # and the other one may load what was just stored
            assert not rank["filled"] and rank["traced"] + rank["loaded"] == 3
            assert rank["loaded"] or rank["reasons"].get(SHARED) == 2
        else:
            assert known == 1 and SHARED not in rank["reasons"]


@pytest.mark.parametrize("mode", MODES)
def test_a_later_job_loads_a_length_and_fills_in_its_own(found, mode, backend):
    for rank, earlier in zip(*([each[mode] for each in job] for job in reversed(found)), strict=True):
        assert rank["equal"] == [(True, True)] * 2
        assert (rank["first"]["made"], rank["first"]["loaded"], rank["first"]["traced"]) == (0, 1, 0)
        assert (rank["loaded"], rank["filled"], rank["traced"]) == (1, int(mode != "rows"), 0), rank
        assert rank["reasons"] == {} or backend == "nccl"
        # Placements of collectives, and agreements of ranks before they first run a trace, are loaded as well.
        traces = 1 + (mode != "ddp")
        assert rank["first"]["placed"] == earlier["placed"][:traces] and len(rank["first"]["placed"]) == traces
        assert rank["first"]["agreements"] == earlier["agreements"] == traces


@pytest.fixture
def job() -> Iterator[None]:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    yield
    torch.distributed.destroy_process_group()


def test_a_group_is_its_ranks_the_size_of_the_job_and_its_libraries(job):
    group = torch.distributed.new_group([0, 2])
    assert describe_group(group).startswith("ranks 0,2 of 3 over cpu:fake,cuda:fake")
    assert describe_group(torch.distributed.new_group([0, 1])) != describe_group(group)
    assert describe_group(torch.distributed.new_group([0, 2])) == describe_group(group)
    assert describe_group(None).startswith("ranks 0,1,2 of 3")
    assert Describer().describe(group) == f"<process group {describe_group(group)}>"


def test_a_reference_leads_to_the_group_at_its_place_only_if_that_is_the_same(job):
    first, second = torch.distributed.new_group([0, 1]), torch.distributed.new_group([0])
    data = SimpleNamespace(process_group_for_ddp=first, transforms=[SimpleNamespace(process_group=second)])
    assert find_groups(data) == (first, second)
    reference = refer_to_group(second, data)
    assert resolve_group(reference, data) is second
    assert refer_to_group(torch.distributed.new_group([0]), data) is None
    swapped = SimpleNamespace(process_group_for_ddp=second, transforms=[SimpleNamespace(process_group=first)])
    with pytest.raises(ValueError, match="process group 1 is another one: ranks 0,1 of 3"):
        resolve_group(reference, swapped)
    with pytest.raises(ValueError, match="the model has no process group 1"):
        resolve_group(reference, SimpleNamespace(process_group_for_ddp=first, transforms=[]))


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
    before = write_transform(Describer(), transform)
    setattr(transform, name, value)
    assert before and (write_transform(Describer(), transform) == before) == (name == "global_rank")


def test_the_order_in_which_a_process_has_the_names_of_a_tied_parameter_is_in_no_key(job, monkeypatch):
    shared_names = ThunderModule._get_shared_names

    def key(reverse: bool) -> tuple[Key, list[str]]:
        def name_in_order(self: ThunderModule) -> dict[str, list[str]]:
            return {name: sorted(same, reverse=reverse) for name, same in shared_names(self).items()}

        model = torch.nn.Sequential(*(torch.nn.Linear(6, 6, bias=False) for _ in range(3)))
        model[1].weight = model[2].weight = model[0].weight
        with monkeypatch.context() as patch:
            patch.setattr(ThunderModule, "_get_shared_names", name_in_order)
            jitted = fsdp(thunder.jit(model), device=torch.device("cpu"))
        return key_of(jitted, torch.zeros(2, 6)), list(jitted._overrides_parameters)

    (one, names), (other, others) = key(False), key(True)
    assert names != others
    assert one == other


def test_which_layers_are_cut_and_how_is_in_the_key(job):
    def key(role: Role = Role.COLUMN, dim: int = 0, shape: tuple[int, int] = (4, 4), **rows: bool) -> str:
        parameters = {"gate.weight": CutParameter("gate", role, dim, shape)}
        return TensorParallelTransform(torch.distributed.new_group([0, 1]), parameters, **rows).cache_key()

    assert key() == key()
    cut = {key(), key(role=Role.GATHERED), key(dim=1), key(shape=(4, 6))}
    assert len(cut | {key(of_rows=True)}) == 5
