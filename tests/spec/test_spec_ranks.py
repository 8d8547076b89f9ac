"""The ranks of a job compile each template once, and compute what one process computes."""

import json
import socket

import thunder
import torch
import torch.distributed as dist

import fusioncache


def train(rank, folder, port):
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(2)])
    cache = fusioncache.Cache(store=f"{folder}/store-{rank}")  # no file is shared
    transform = fusioncache.FusionCache(backend="inductor", cache=cache, jobs=0)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    output = compiled(torch.ones(4, 8))
    output.sum().backward()
    stats = transform.stats()
    counts = {"templates": stats.templates, "compiles": stats.compiles, "loads": stats.loads}
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump({**counts, "bits": [output.tolist(), model[0][0].weight.grad.tolist()]}, file)
    dist.destroy_process_group()


def test_each_template_is_compiled_by_one_rank(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.set_forkserver_preload(["quick_process", "thunder", "fusioncache"])
    torch.multiprocessing.start_processes(train, (str(tmp_path), port), 2, start_method="forkserver")
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["templates"] == second["templates"] > 0
    assert first["compiles"] + second["compiles"] == first["loads"] + second["loads"] == first["templates"]
    assert first["bits"] == second["bits"]
