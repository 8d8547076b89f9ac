"""Does a model that the project was not written for train at any length, in one process, for as long as you like?

Each model takes so many training steps, each at a random one of so many random lengths. The loss and the gradients are
compared with those of eager PyTorch on the same parameters in float32, in every step unless you say otherwise. The
error of a model is the largest of its steps, and eager PyTorch in the model's own dtype has one as well: it passes if
its error is at most twice that one. The process exits with 1 if a model does not pass. Under ``compute-sanitizer --tool
memcheck`` it shows as well that no kernel touches memory that is not its own.
"""

from __future__ import annotations

import copy
import random
import time
from typing import Any

import click
import torch
from torch import nn
from torch.nn import functional

from benchmarks.common.errors import find_worst
from benchmarks.common.options import Words, count_option
from benchmarks.common.processes import say
from benchmarks.common.runner import Point, Run, benchmark, pick
from benchmarks.zoo.token_models import MODELS, VOCABULARY

_FACTOR = 2.0
_SAID = 20
"""How many steps after which it says how far it is."""


@benchmark(__doc__)
@click.option("--models", type=Words(tuple(MODELS)), default=tuple(MODELS))
@count_option("--steps", 200, "Of each model.")
@count_option("--lengths", 24, "How many lengths there are.", least=2)
@count_option("--longest", 400, "Tokens of the longest.", least=8)
@count_option("--every", 1, "Compare the first of so many steps.")
@click.option("--graphs/--no-graphs", default=False, help="Capture CUDA graphs.")
@click.option("--seed", type=int, default=0)
def main(run: Run, models: tuple[str, ...], **options: Any) -> None:
    """Runs the benchmark."""
    for name in models:
        run.keep(train(name, backend=run.machine.backend, **options))
    columns = {name: pick(name, digits=6) for name in ("model", "steps", "lengths", "distance", "eager_distance")}
    columns |= {name: pick(name) for name in ("seconds", "slowest_step", "compiles", "own_sizes", "graph_replays")}
    run.finish("errors of the loss and the gradients", columns)


def train(
    name: str, *, steps: int, lengths: int, longest: int, graphs: bool, seed: int, every: int = 1, backend: str = "auto"
) -> Point:
    """Returns what the steps of one model gave: its error, that of eager PyTorch, seconds, and counts."""
    import thunder

    import fusioncache

    torch.manual_seed(seed)
    chance = random.Random(seed)
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = MODELS[name]().to(device, dtype)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).float()
    transform = fusioncache.FusionCache(graphs=graphs, backend=backend)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    choices = [chance.randint(2, longest) for _ in range(lengths)]
    errors, start, slowest = [0.0, 0.0], time.perf_counter(), 0.0
    used: set[int] = set()
    for step in range(steps):
        if step % _SAID == 0:
            say(f"{name}: {step} steps, {len(used)} lengths, {time.perf_counter() - start:.0f} s\n")
        length = chance.choice(choices)
        used.add(length)
        tokens = torch.randint(0, VOCABULARY, (2, length), device=device)
        begun = time.perf_counter()
        found = _gradients(compiled, model, tokens)
        slowest = max(slowest, time.perf_counter() - begun)
        if step % every:
            continue
        expected = _gradients(exact, exact, tokens)
        for place, gradients in enumerate((found, _gradients(eager, eager, tokens))):
            errors[place] = max(errors[place], find_worst(gradients, expected))
    stats = transform.stats()
    return {
        "model": name,
        "steps": steps,
        "lengths": len(used),
        "distance": errors[0],
        "eager_distance": errors[1],
        "correct": errors[0] <= max(_FACTOR * errors[1], 1e-5),
        "seconds": time.perf_counter() - start,
        "slowest_step": slowest,
        "compiles": stats.compiles,
        "own_sizes": stats.reused_sizes,
        "graph_replays": stats.graph_replays,
        "bypasses": dict(stats.bypasses),
        "not_captured": dict(stats.not_captured),
    }


def _gradients(call: Any, model: nn.Module, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Returns the loss and the gradients of a step, in float32."""
    model.zero_grad()
    loss = functional.cross_entropy(call(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    if tokens.is_cuda:
        torch.cuda.synchronize()
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]
    return [loss.detach(), *(gradient.float() for gradient in gradients)]


if __name__ == "__main__":
    main()
