"""The ranks of a job compile each template once, and compute what one process computes."""

import json
import subprocess
import sys

SCRIPT = """
import json, sys
import thunder, torch
import torch.distributed as dist
import fusioncache

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(2)])
cache = fusioncache.Cache(store=f"{sys.argv[1]}/store-{rank}")  # no file is shared
transform = fusioncache.FusionCache(backend="inductor", cache=cache, jobs=0)
compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
output = compiled(torch.ones(4, 8))
output.sum().backward()
stats = transform.stats()
with open(f"{sys.argv[1]}/rank-{rank}.json", "w") as file:
    json.dump({"templates": stats.templates, "compiles": stats.compiles, "loads": stats.loads,
               "output": output.tolist(), "gradient": model[0][0].weight.grad.tolist()}, file)
dist.destroy_process_group()
"""


def test_each_template_is_compiled_by_one_rank(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    subprocess.run([*command, str(tmp_path)], check=True, capture_output=True)
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first["templates"] == second["templates"] > 0
    assert first["compiles"] + second["compiles"] == first["templates"]
    assert first["loads"] + second["loads"] == first["templates"]
    assert first["output"] == second["output"]
    assert first["gradient"] == second["gradient"]
