"""On a GPU: a pack made in one environment is used in a fresh one, which compiles nothing and has the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import call
from repository import HELPERS, ROOT, import_path
from signing_keys import make_signing_key

from fusioncache.cache.packing import make_misfit_finder
from fusioncache.store.packs import open_pack
from fusioncache.store.signing import read_trust

pytestmark = pytest.mark.gpu
CI = make_signing_key("ci")
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
    """Runs the model in a process of its own, whose caches are all in a folder."""
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


def test_a_fresh_environment_compiles_nothing_and_has_the_same_bits(tmp_path, monkeypatch):
    compiled, _, programs, _, bits = train(tmp_path / "one", 32, 48)
    assert compiled > 0 and programs > 0
    monkeypatch.setenv("FUSIONCACHE_SIGNING_KEY", CI.text)
    monkeypatch.setenv("FUSIONCACHE_TRUST", CI.public)
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
    find_misfit = make_misfit_finder()
    executables = [needs for needs in opened.manifest.environments if "device" in needs]
    assert executables
    for needs in executables:
        assert find_misfit(needs) is None
        for name in ("device", "architecture", "driver", "versions"):
            reason = find_misfit({**needs, name: needs[name].replace("1", "2").replace("H", "B") + "0"})
            assert reason is not None and " here, and " in reason and reason.endswith(" in the pack"), name
        elsewhere = find_misfit({**needs, "device": "NVIDIA A100-SXM4-80GB, 108 SMs, 8.0"})
        assert "NVIDIA A100-SXM4-80GB, 108 SMs, 8.0 in the pack" in elsewhere
