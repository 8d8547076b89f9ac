"""Processes that train one model together under Thunder's ``fsdp`` or ``ddp``, over gloo or with one GPU each."""

import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

import fusioncache
import fusioncache.distributed as distributed
from fusioncache.accelerators.schedule.calls import Kind
from fusioncache.accelerators.schedule.collectives import is_view, kind_of, read_message


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width)
        self.gate, self.up = (torch.nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class TiedModel(torch.nn.Module):
    """A model whose ends are tied, of any vocabulary; its last norm has no gradients. It has a buffer."""

    def __init__(self, vocabulary: int, width: int = 16, dropout: float = 0.0):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.block = Block(width)
        self.norm = torch.nn.RMSNorm(width)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.norm.weight.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width))
        self.dropout = dropout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.block(self.embedding(tokens) * self.scale)
        x = torch.nn.functional.dropout(x, self.dropout, self.training) if self.dropout else x
        return self.head(self.norm(x))


def make_model(width: int = 16, vocabulary: int = 33, blocks: int = 2) -> torch.nn.Module:
    """Returns a small language model, the same on every rank; its vocabulary is padded for two ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, width),
        *(Block(width) for _ in range(blocks)),
        torch.nn.RMSNorm(width),
        torch.nn.Linear(width, vocabulary, bias=False),
    )


def make_options(**more: Any) -> dict[str, Any]:
    """Returns options of a transform that stores nothing, by default of the eager backend."""
    cache = fusioncache.Cache(record=False, store=False)
    return {"cache": cache, "backend": "eager", "jobs": 0, "programs": False, **more}


def share(jitted: Any, mode: str) -> Any:
    """Returns a jitted model that is distributed over the ranks: ``ddp``, ``zero2`` or ``zero3``."""
    from thunder.distributed import FSDPType, ddp, fsdp

    if mode == "ddp":
        return ddp(jitted)
    return fsdp(jitted, device=device_of(jitted), sharding_strategy=FSDPType[mode.upper()])


def device_of(model: Any) -> torch.device:
    return next(model.parameters()).device


def take_step(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the loss of a model that predicts each token itself, after a backward pass."""
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss.detach()


def train(jitted: Any, rank: int, steps: int = 3) -> list[torch.Tensor]:
    """Returns loss and gradients of some training steps. Each rank draws other data."""
    seen = []
    optimizer = torch.optim.SGD(jitted.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(100 * rank + step)
        tokens = torch.randint(0, 32, (2, 8)).to(device_of(jitted))
        seen += [take_step(jitted, tokens).clone(), *(parameter.grad.clone() for parameter in jitted.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return seen


def list_calls(trace: Any) -> list[str]:
    """Returns the names of a trace's calls; for gathers and reduces, kind and message of each merged one."""
    kinds = (Kind.GATHER, Kind.REDUCE)
    return [
        f"{kind} {text}" if (kind := kind_of(symbol)) in kinds else str(kind or symbol.sym.name)
        for symbol in trace.bound_symbols
        if symbol.sym.name != "python_del"
        for text in (read_message(symbol).split(" + ") if kind_of(symbol) in kinds else ("",))
    ]


def list_collectives(calls: list[str]) -> list[str]:
    return [call for call in calls if call.startswith(("gather", "reduce"))]


def describe(jitted: Any) -> dict[str, Any]:
    """Returns the calls of the passes of a trained model, the collectives among them, and what its transform counts."""
    import thunder

    (transform,) = (one for one in jitted._lc_transforms if isinstance(one, fusioncache.FusionCache))
    traces = thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]
    forward, backward = map(list_calls, traces)
    return {
        "forward": forward,
        "backward": backward,
        "sequence": list_collectives(forward + backward),
        "templates": sorted(call.template.key.digest for call in transform.calls()),
        "compiles": transform.stats().compiles,
        "bypasses": dict(transform.stats().bypasses),
        "saved": count_saved(traces[0]),
    }


def find_state(jitted: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": distributed.state_dict(jitted), "optimizer": distributed.optimizer_state_dict(jitted, optimizer)}


@torch.no_grad()
def spoil(jitted: Any) -> None:
    for parameter in jitted.parameters():
        parameter.fill_(7)


def copy_weights(jitted: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in jitted.original_state_dict().items()}


def count_saved(trace: Any) -> int:
    """Returns how many gathered parameters, and views of them, a forward trace saves for backward."""
    gathered: set[str] = set()
    for symbol in trace.bound_symbols:
        taken = {proxy.name for proxy in symbol.flat_proxy_args}
        if kind_of(symbol) is Kind.WAIT or (taken <= gathered and is_view(symbol)):
            gathered.update(proxy.name for proxy in symbol.flat_proxy_outs)
    return len(gathered & {proxy.name for proxy in trace.bound_symbols[-1].args[1][0]})


def run_ranks(work: Callable[[int], Any], world: int = 2, backend: str = "gloo") -> list[Any]:
    """Returns the result of a function of the rank from each process of a job, which imports the function anew."""
    with tempfile.TemporaryDirectory() as folder:
        _start(work, world, backend, folder)
        return [torch.load(f"{folder}/{rank}", weights_only=True) for rank in range(world)]


def run_with_losses(work: Callable[[int], Any], patience: float) -> Any:
    """Returns the result of a function from the first process of a job of two, of which the second one may be lost."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = _start(work, 2, "gloo", folder, join=False).processes
        first.join(patience)
        for process in (first, second):
            process.kill()
            process.join()
        if not Path(folder, "0").exists():
            raise TimeoutError(f"the first rank left nothing; it ended with {first.exitcode}")
        return torch.load(f"{folder}/0", weights_only=True)


def _start(work: Callable[[int], Any], world: int, backend: str, folder: str, **options: bool) -> Any:
    # Each process would itself import modules that are not loaded when it is forked.
    modules = ["quick_process", "thunder", "pytest", "fusioncache.distributed", "sharded_training"]
    torch.multiprocessing.set_forkserver_preload(modules)
    options["start_method"] = "spawn" if backend == "nccl" else "forkserver"
    return torch.multiprocessing.start_processes(_run, (world, folder, work, backend), world, **options)


def _run(rank: int, world: int, folder: str, work: Callable[[int], Any], backend: str) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    # The time limit replaces torch's default.
    where = {"init_method": f"file://{folder}/meeting", "timeout": timedelta(minutes=5)}
    torch.distributed.init_process_group(backend, rank=rank, world_size=world, **where)
    torch.save(work(rank), f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


def equal_bits(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.equal(our.view(torch.int32), their.view(torch.int32)) for our, their in pairs)
