"""Where nvFuser's seconds for the templates of a Llama go, and what its options would spare.

One training step fills a store. Each way to compile is a fresh process then, which compiles every template of it once.
Compiling includes the first execution. Outputs, and the CUDA of the kernels, are compared with those of the first way.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import click

from benchmarks.common import processes
from benchmarks.common.cores import share_cores
from benchmarks.common.models import TOKENS, WIDTHS
from benchmarks.common.nvfuser_trace import VARIABLE, read_calls
from benchmarks.common.options import Words, count_option, layers_option
from benchmarks.common.processes import say
from benchmarks.common.runner import Point, Run, benchmark, pick
from benchmarks.first_step import FirstStepSpec

_SWITCHES: Any = ((), ())
"""Of nvFuser's options none is switched on or off."""
_LEAST_SECONDS = 0.02
"""In functions in which nvFuser is for less nothing is to be spared."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compile every template once, in a process of its own.

    Attributes:
        name: as in ``--variants``.
        meaning: what differs.
        way: ``"compile"``; ``"persist"``, which also makes what another process can load; or ``"trace"``, with a
            trace of nvFuser's own, which costs time.
        environment: variables of the process.
    """

    name: str
    meaning: str
    way: Literal["compile", "persist", "trace"] = "compile"
    environment: Mapping[str, str] = field(default_factory=dict)


_ARENA = {"MALLOC_TOP_PAD_": "268435456", "MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_THRESHOLD_": "268435456"}
_TCACHE = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=65535"}
_ALL = (
    Variant("base", "as it is"),
    Variant("base again", "the same once more, for the spread"),
    Variant("trace", "with its own trace", "trace"),
    Variant("persist", "with all that the store does", "persist"),
    Variant("tcache", "glibc keeps all small pieces of memory for its thread", environment=_TCACHE),
    Variant("tcache+arena", "both", environment={**_TCACHE, **_ARENA}),
)
VARIANTS = {variant.name: variant for variant in _ALL}


def preload_library(file: Path) -> Variant:
    """Returns the way in which a library is loaded first, such as one that allocates memory otherwise."""
    loaded = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), str(file.resolve())]))
    return Variant(f"with {file.name}", "a library of its own for memory", environment={"LD_PRELOAD": loaded})


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what was found for each template, the same order in every process."""
    from fusioncache.accelerators.precompile.entry_compiler import read_request, survey
    from fusioncache.store import Store

    variant = Variant(**options["variant"])
    store = Store.open(Path(options["store"]))
    _pay_once()
    requests = {id_: read_request(store, id_).request for id_ in survey(store).seconds}
    # The largest last, which is not the order of their digests in another version.
    ordered = sorted(requests.items(), key=lambda each: (len(each[1].graph.ops), repr(each[1].graph)))
    return {"templates": [_measure(id_, request, variant) for id_, request in ordered]}


def _measure(id_: str, asked: Any, variant: Variant) -> dict[str, Any]:
    import torch

    from benchmarks.common.tensors import digest_all
    from fusioncache.accelerators.precompile.entry_compiler import make_arguments

    graph, args = asked.graph, make_arguments(asked.graph, asked.layouts)
    torch.cuda.synchronize()
    start, start_cpu = time.perf_counter(), time.process_time()
    run, read_code = _compile(graph, args, variant)
    torch.cuda.synchronize()
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    names = list(dict.fromkeys(op.name.rpartition(".")[2] for op in graph.ops))
    outputs = dict(enumerate(run(make_arguments(graph, asked.layouts))))
    found = {"id": id_[:8], "operations": len(graph.ops), "names": names, "seconds": seconds, "cpu": cpu}
    found["bits"] = digest_all({f"{number} {tensor.stride()}": tensor for number, tensor in outputs.items()})[:16]
    if read_code is not None:
        code = read_code()
        found |= {"kernels": code.count("__global__"), "code": digest_code(code)}
    return found


def _compile(
    graph: Any, args: Sequence[Any], variant: Variant
) -> tuple[Callable[..., Sequence[Any]], Callable[[], str] | None]:
    """Returns a function, and what tells the CUDA of its kernels, if that can be told."""
    from fusioncache.backends.nvfuser import persistence
    from fusioncache.backends.nvfuser.definition import compile_definition

    if variant.way == "persist":
        return persistence.persist(graph, args, _SWITCHES).run, None
    compiled = compile_definition(graph, args, _SWITCHES)
    device = args[0].get_device() if compiled.device is None else compiled.device
    read_code = partial(compiled.definition.fec.get_cuda_kernel, list(args), intrinsic_code=False, device=device)
    return compiled.run, read_code


def _pay_once() -> None:
    """Pays the one-time costs of a process, with a definition that no template is."""
    import torch
    from nvfuser_direct import FusionDefinition

    x = torch.ones(3, 7, device="cuda")
    with FusionDefinition() as definition:
        tensor = definition.from_pytorch(x)
        definition.add_output(definition.ops.cos(definition.ops.sum(tensor, [1])))
    definition.execute([x])
    torch.cuda.synchronize()


def digest_code(code: str) -> str:
    """Returns the first digits of a digest of a CUDA text, with names numbered by their first use.

    nvFuser numbers values and kernels as it comes to them.
    """
    names: dict[str, str] = {}
    counts: dict[str, int] = {}

    def rename(found: re.Match[str]) -> str:
        name, prefix = found[0], found[1]
        if name not in names:
            counts[prefix] = counts.get(prefix, -1) + 1
            names[name] = f"{prefix}{counts[prefix]}"
        return names[name]

    return hashlib.sha256(
        re.sub(r"\b([A-Za-z_]+?)(\d+)\b", rename, re.sub(r"\bnvfuser_\w+", "kernel", code)).encode()
    ).hexdigest()[:16]


@benchmark(__doc__, "nvfuser")
@click.option("--width", type=click.Choice(WIDTHS), default="narrow", help="real: Llama-2-7b, 1 x 2048 tokens.")
@layers_option(2)
@click.option("--variants", type=Words(tuple(VARIANTS)), default=tuple(VARIANTS), help="The first is the base.")
@count_option("--parallel", 1, "Ways at once, each on cores of its own.")
@click.option("--preload", type=click.Path(exists=True, path_type=Path), multiple=True, help="One more way: a library.")
def main(run: Run, width: str, layers: int, variants: Sequence[str], parallel: int, preload: Sequence[Path]) -> None:
    """Runs the benchmark."""
    model: dict[str, Any] = {**run.machine.place(), "model": "llama", "width": width, "tokens": TOKENS[width]}
    with TemporaryDirectory(prefix="fusioncache-nvfuser-") as directory:
        store = fill_store(FirstStepSpec(layers=layers, **model), Path(directory, "caches"))
        chosen = [*(VARIANTS[name] for name in variants), *map(preload_library, preload)]
        with ThreadPoolExecutor(parallel, initializer=share_cores(parallel)) as pool:
            for point in pool.map(partial(_run_variant, run, store), chosen):
                base = run.points[0] if run.points else point
                if "templates" in point and "templates" in base:
                    point["compared"] = compare(point, base)
                run.keep(point)
    names = ("seconds", "ratio", "cpu", "kernels", "other_bits", "other_code")
    columns = {"<way": pick("variant"), **{name: pick("compared", name) for name in names}}
    run.finish("seconds of compiling all templates", columns)


def fill_store(spec: FirstStepSpec, caches: Path) -> Path:
    """Trains one step, and returns the directory with the templates that it asked for."""
    caches.mkdir()
    environment = {"FUSIONCACHE_STORE": "1", "FUSIONCACHE_JOBS": "0"}
    processes.call("benchmarks.first_step:measure", asdict(spec), caches=caches, environment=environment)
    (store,) = Path(caches, "fusioncache_dir").glob("store-*")
    return store


def _run_variant(run: Run, store: Path, variant: Variant) -> Point:
    about = {"variant": variant.name, "meaning": variant.meaning}
    trace = store.with_name(f"trace-{variant.name}.json")
    environment = {**variant.environment, **({VARIABLE: str(trace)} if variant.way == "trace" else {})}
    options = {"variant": asdict(variant), "store": str(store)}
    point = run.ask(about, "benchmarks.nvfuser_seconds:measure", options, environment=environment)
    if variant.way == "trace" and "templates" in point:
        _add_scopes(point["templates"], trace)
    say(f"{variant.name}: {sum(template['seconds'] for template in point.get('templates', ())):.2f} s\n")
    return point


def _add_scopes(templates: Sequence[dict[str, Any]], trace: Path) -> None:
    """Adds to each template what nvFuser's trace says of its compile: each was called once more, to be compared."""
    _, *calls = read_calls(trace)
    for template, scopes in zip(templates, calls[::2], strict=True):
        long = {name: scope for name, scope in scopes.items() if scope.seconds >= _LEAST_SECONDS}
        template["scopes"] = {name: asdict(scope) for name, scope in sorted(long.items())}


def compare(point: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a point differs from the base: seconds, their ratio, templates with other bits and other kernels."""
    pairs = list(zip(point["templates"], base["templates"], strict=True))
    seconds, before = (sum(template["seconds"] for template in column) for column in zip(*pairs, strict=True))
    return {
        "seconds": seconds,
        "ratio": seconds / before,
        "cpu": sum(template["cpu"] for template, _ in pairs),
        "other_bits": sum(one["bits"] != other["bits"] for one, other in pairs),
        "other_code": sum(one["code"] != other["code"] for one, other in pairs) if "code" in pairs[0][0] else None,
        "kernels": sum(template.get("kernels", 0) for template, _ in pairs),
    }


if __name__ == "__main__":
    main()
