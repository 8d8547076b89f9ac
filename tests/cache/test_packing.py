"""A pack takes what a model needs to another store, where nothing is compiled, and says what is for other machines."""

from pathlib import Path

import pytest
import thunder
import torch
from signing_keys import make_signing_key

import fusioncache
from fusioncache.cache import packing
from fusioncache.ir.keys import MACHINE, read_key
from fusioncache.process.settings import SIGNING_KEY, TRUST
from fusioncache.store import StoreError
from fusioncache.store.packs import open_pack
from fusioncache.store.signing import read_trust

CI = make_signing_key("ci")


class Wave(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2 + torch.cos(x)


class Bell(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(-x * x)


def run(
    model: torch.nn.Module, store: Path, lengths: list[int], backend: str = "inductor"
) -> tuple[fusioncache.Cache, list[torch.Tensor], int]:
    """Runs a model as a process of its own would. Returns its cache, its outputs and how much it compiled."""
    cache = fusioncache.Cache(record=False, store=store)
    transform = fusioncache.FusionCache(cache=cache, backend=backend, jobs=0)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    outputs = [compiled(torch.randn(length, 8, generator=torch.Generator().manual_seed(0))) for length in lengths]
    return cache, outputs, transform.stats().compiles


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[fusioncache.Cache, list[torch.Tensor]]:
    """A cache whose store has two models, one of them at two lengths, and the outputs of that."""
    store = tmp_path_factory.mktemp("made") / "store"
    run(Bell(), store, [4], "eager")
    cache, outputs, compiled = run(Wave(), store, [4, 6])
    assert compiled
    return cache, outputs


@pytest.fixture(autouse=True)
def _trusts_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST.name, CI.public)
    monkeypatch.setenv(SIGNING_KEY.name, CI.text)


def empty(tmp_path: Path) -> fusioncache.Cache:
    return fusioncache.Cache(record=False, store=tmp_path / "there")


def test_a_model_is_packed_and_compiles_nothing_elsewhere(made, tmp_path):
    cache, outputs = made
    packed = cache.save(tmp_path / "wave.fcpack", model="Wave")
    assert packed.entries < len(cache.store.entries())
    there = empty(tmp_path)
    unpacked = there.load(packed.path)
    assert (unpacked.entries, unpacked.skipped, unpacked.unfit, unpacked.refused) == (packed.entries, 0, {}, {})
    assert {entry.name for entry in there.store.entries() if entry.backend.startswith("program")} == {"Wave"}
    _, again, compiled = run(Wave(), there.store.directory, [4, 6])
    assert compiled == 0
    assert all(torch.equal(one, other) for one, other in zip(outputs, again, strict=True))
    assert there.load(packed.path).skipped == packed.entries


def test_what_is_not_there_is_not_packed(made, tmp_path):
    with pytest.raises(StoreError, match="no program of Waves; it has programs of: Bell, Wave"):
        made[0].save(tmp_path / "x", model="Waves")
    with pytest.raises(StoreError, match="there is no store"):
        fusioncache.Cache(record=False, store=False).save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_what_is_for_other_machines_is_left_out(made, tmp_path):
    cache, _ = made
    texts = [read_key(entry.text) for entry in cache.store.entries()]
    processors = [text["architecture"] for text in texts if "architecture" in text]
    for number, only in enumerate(({"device": processors[0].split()[0]}, {"version": "torch 2."}, {"driver": "12080"})):
        assert cache.save(tmp_path / str(number), **only).entries == len(texts)
    for only in ({"device": "H100"}, {"version": "torch 0.1"}):
        with pytest.raises(StoreError, match=r"nothing that was compiled for (H100|torch 0.1): 'fusioncache ls'"):
            cache.save(tmp_path / "others", **only)


def test_each_thing_that_a_machine_differs_in_is_named(made, tmp_path):
    """Of an entry for exactly this machine, each ingredient is changed alone."""
    packed = made[0].save(tmp_path / "all")
    pack = open_pack(packed.path, read_trust())
    find_misfit = packing.make_misfit_finder()
    tried = set()
    for needs in pack.manifest.environments:
        assert find_misfit(needs) is None
        for name in needs:
            reason = find_misfit({**needs, name: f"{needs[name]}x"})
            assert reason is not None, name
            assert name == "backend" or " here, and " in reason, reason
            tried.add(name)
    assert tried <= MACHINE
    assert tried >= {"architecture", "versions", "program versions", "inductor processor"}


def test_what_is_for_another_machine_is_left_out_with_the_reason(made, tmp_path, monkeypatch):
    packed = made[0].save(tmp_path / "all")
    read = packing.read_machine

    def read_another(backend):
        here = read(backend)
        return {**here, "architecture": "another"} if "architecture" in here else here

    monkeypatch.setattr(packing, "read_machine", read_another)
    there = empty(tmp_path)
    unpacked = there.load(packed.path)
    assert unpacked.entries + len(unpacked.unfit) == packed.entries
    assert all(id_.endswith(("inductor", "sizes")) for id_ in unpacked.unfit)
    assert {reason.partition(" is ")[0] for reason in unpacked.unfit.values()} == {"the architecture"}
    assert unpacked.refused == {}
    assert empty(tmp_path / "every").load(packed.path, all_machines=True).entries == packed.entries
    dry = empty(tmp_path / "dry").load(packed.path, dry_run=True)
    assert (dry.entries, dry.unfit) == (unpacked.entries, unpacked.unfit)


def test_a_pack_for_a_compiler_that_is_not_here():
    find_misfit = packing.make_misfit_finder()
    assert "no backend later here" in find_misfit({"backend": "later", "device": "NVIDIA X"})
    if not torch.cuda.is_available():
        assert find_misfit({"backend": "nvfuser", "device": "NVIDIA X"}).endswith("(it was made on NVIDIA X)")
