"""A pack carries a model's entries to another store, where nothing is compiled, and names those for other machines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import call
from repository import HELPERS, ROOT, import_path
from signing_keys import make_signing_key
from stored_programs import compile_anew

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
    """Runs a model as a separate process would. Returns its cache, its outputs and the number of compiles."""
    compiled, transform = compile_anew(model, store, backend)
    outputs = [compiled(torch.randn(length, 8, generator=torch.Generator().manual_seed(0))) for length in lengths]
    return transform.cache, outputs, transform.stats().compiles


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[fusioncache.Cache, list[torch.Tensor]]:
    """A cache whose store contains two models, one of them at two lengths, and the outputs of that one."""
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


def test_a_model_is_packed_and_compiles_nothing_elsewhere(models, tmp_path):
    cache, outputs = models
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


def test_what_is_not_there_is_not_packed(models, tmp_path):
    with pytest.raises(StoreError, match="no program of Waves; it has programs of: Bell, Wave"):
        models[0].save(tmp_path / "x", model="Waves")
    with pytest.raises(StoreError, match="there is no store"):
        fusioncache.Cache(record=False, store=False).save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_what_is_for_other_machines_is_left_out(models, tmp_path):
    cache, _ = models
    texts = [read_key(entry.text) for entry in cache.store.entries()]
    processors = [text["architecture"] for text in texts if "architecture" in text]
    for number, only in enumerate(({"device": processors[0].split()[0]}, {"version": "torch 2."}, {"driver": "12080"})):
        assert cache.save(tmp_path / str(number), **only).entries == len(texts)
    for only in ({"device": "H100"}, {"version": "torch 0.1"}):
        with pytest.raises(StoreError, match=r"nothing that was compiled for (H100|torch 0.1): 'fusioncache ls'"):
            cache.save(tmp_path / "others", **only)


def test_each_thing_that_a_machine_differs_in_is_named(models, tmp_path):
    """Changes each ingredient of an entry for exactly this machine alone."""
    packed = models[0].save(tmp_path / "all")
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


def test_what_is_for_another_machine_is_left_out_with_the_reason(models, tmp_path, monkeypatch):
    packed = models[0].save(tmp_path / "all")
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


TRAIN = """
import hashlib, json, sys, thunder, torch, fusioncache

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5))))

torch.manual_seed(0)
model = torch.nn.Sequential(Block(), Block()).to("cuda", torch.bfloat16)
cache = fusioncache.Cache(store=True)
transform = fusioncache.FusionCache(cache=cache, jobs=0)
compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
digest = hashlib.sha256()
for length in map(int, sys.argv[1:]):
    torch.manual_seed(length)
    x = torch.randn(2, length, 64, device="cuda", dtype=torch.bfloat16)
    model.zero_grad()
    y = compiled(x)
    y.float().pow(2).sum().backward()
    for tensor in (y, *(each.grad for each in model.parameters())):
        digest.update(tensor.detach().cpu().view(torch.uint8).numpy().tobytes())
stats = transform.stats()
kept = stats.compiles - sum(stats.unkept.values())  # the store holds all but these
print(json.dumps([kept, stats.loads, stats.programs_made, stats.programs_loaded, digest.hexdigest()]))
"""


def train(folder: Path, *lengths: int) -> list:
    """Runs the model in a separate process, whose caches are all in a folder; returns its counts and a digest."""
    caches = ("FUSIONCACHE_DIR", "TMPDIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    for name in caches:
        (folder / name).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": import_path(ROOT, HELPERS), "FUSIONCACHE_TRUST": CI.public}
    environment |= {name: str(folder / name) for name in caches}
    environment.pop("FUSIONCACHE_STORE", None)
    command = [sys.executable, "-W", "ignore", "-c", TRAIN, *map(str, lengths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.gpu
def test_a_fresh_environment_compiles_nothing_and_has_the_same_bits(tmp_path, monkeypatch):
    compiled, _, programs, _, bits = train(tmp_path / "one", 32, 48)
    assert compiled > 0 and programs > 0
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path / "one" / "FUSIONCACHE_DIR"))
    pack = tmp_path / "model.fcpack"
    assert call("pack", "--model", "Sequential", "-o", str(pack)).exit_code == 0

    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path / "other" / "FUSIONCACHE_DIR"))
    unpacked = json.loads(call("unpack", str(pack), "--json").stdout)
    assert unpacked["unfit"] == unpacked["refused"] == {}
    again = train(tmp_path / "other", 32, 48)
    assert (again[0], again[2], again[4]) == (0, 0, bits)
    assert again[1] > 0 and again[3] > 0

    opened = open_pack(pack, read_trust())
    find_misfit = packing.make_misfit_finder()
    executables = [needs for needs in opened.manifest.environments if "device" in needs]
    assert executables
    for needs in executables:
        assert find_misfit(needs) is None
        for name in ("device", "architecture", "driver", "versions"):
            reason = find_misfit({**needs, name: needs[name].replace("1", "2").replace("H", "B") + "0"})
            assert reason is not None and " here, and " in reason and reason.endswith(" in the pack"), name
        elsewhere = find_misfit({**needs, "device": "NVIDIA A100-SXM4-80GB, 108 SMs, 8.0"})
        assert "NVIDIA A100-SXM4-80GB, 108 SMs, 8.0 in the pack" in elsewhere
