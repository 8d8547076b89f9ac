"""A whole model in a second process, TorchInductor on the CPU: nothing is compiled, and every bit is the same.

``tests/backends/test_inductor_package.py`` has kernels of more kinds.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import HELPERS, import_path

_STEP = """
import hashlib, json, sys, warnings
warnings.simplefilter("ignore")
import thunder, torch
from models import Residual, step
import fusioncache

torch.manual_seed(0)
model, x = Residual(2), torch.randn(10, 10)
options = json.loads(sys.argv[1])
transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="inductor", **options)
compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
results = [result.detach().numpy().tobytes() for _ in range(2) for result in step(compiled, model, x)]
stats = transform.stats()
print(json.dumps({
    "digest": hashlib.sha256(b"".join(results)).hexdigest(), "compiles": stats.compiles, "loads": stats.loads,
    "templates": stats.templates, "programs": [stats.programs_loaded, stats.programs_made],
    "unkept": dict(stats.unkept), "bypasses": dict(stats.bypasses),
    "compiler": any("torch._inductor.codegen" in name or "torch._dynamo.convert_frame" in name for name in sys.modules),
}))
"""


def process(directory: Path, seed: int, **options: Any) -> dict[str, Any]:
    """One training step, twice, in a process whose sets have an order of their own."""
    environment = os.environ | {
        "PYTHONPATH": import_path(HELPERS),
        "FUSIONCACHE_DIR": str(directory),
        "FUSIONCACHE_STORE": "1",
        "PYTHONHASHSEED": str(seed),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / f"inductor-{seed}"),
    }
    command = [sys.executable, "-c", _STEP, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store that a first process filled, and what that one did."""
    directory = tmp_path_factory.mktemp("store")
    return directory, process(directory, 1)


def test_the_first_process_compiles_and_keeps_all(filled):
    _, first = filled
    assert first["compiles"] > 3 and first["loads"] == 0
    assert not first["unkept"] and not first["bypasses"]
    assert first["programs"] == [0, 1]


def test_a_second_process_compiles_nothing(filled):
    directory, first = filled
    second = process(directory, 2)
    assert (second["compiles"], second["loads"]) == (0, first["compiles"])
    assert second["digest"] == first["digest"]
    assert not second["bypasses"]
    assert second["programs"] == [1, 0]
