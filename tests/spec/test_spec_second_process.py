"""A second process neither traces nor compiles."""

import json
import os
import sys

import pytest
from forked_processes import run

SCRIPT = """
import json, sys
import thunder, torch
import fusioncache

torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(2)]
model = torch.nn.Sequential(*layers)
transform = fusioncache.FusionCache(backend="inductor", cache=fusioncache.Cache(store=sys.argv[1]), jobs=0)
compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
output = compiled(torch.ones(4, 8))
output.sum().backward()
stats = transform.stats()
print(json.dumps({
    "compiles": stats.compiles, "loads": stats.loads,
    "traced": stats.programs_made, "loaded": stats.programs_loaded,
    "left": dict(stats.unkept) | dict(stats.bypasses), "compiler": "torch._inductor.codegen.cpp" in sys.modules,
    "output": output.tolist(), "gradient": model[0][0].weight.grad.tolist(),
}))
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Returns the output of two processes that run one script with one store, one after the other."""
    folder, said = tmp_path_factory.mktemp("store"), []
    (folder / "train.py").write_text(SCRIPT)
    for _ in range(2):
        with (folder / "output").open("w+") as output:
            command = [sys.executable, "-m", "train", str(folder / "store")]
            assert run(command, cwd=folder, env=os.environ, stdout=output, stderr=output).returncode == 0
            said.append(json.loads(output.readlines()[-1]))
    return said


def test_the_first_process_traces_and_compiles(processes):
    first, _ = processes
    assert first["traced"] == 1
    assert first["compiles"] > 0
    assert first["compiler"] and not first["left"]


def test_the_second_process_loads_the_program_and_each_executable(processes):
    first, second = processes
    assert (second["traced"], second["loaded"]) == (0, 1)
    assert (second["compiles"], second["loads"]) == (0, first["compiles"])
    assert not second["compiler"] and not second["left"]


def test_both_compute_the_same_bits(processes):
    first, second = processes
    assert first["output"] == second["output"]
    assert first["gradient"] == second["gradient"]
