"""Calls one model at each length in each mode, and prints its traces, templates, counts and stored keys."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields
from importlib import import_module
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.common.processes import serve
from golden.texts import Section, normalize

FORWARD = "forward"
MODES = (FORWARD, "training")
LENGTHS = (24, 40, 17, 64, 33, 16, 48, 60)
"""Sequence lengths, in order. 16 and 64 are also widths of the models."""
_ROWS = (3, 5, 2, 8, 4, 6, 7, 9)
"""Batch sizes, in order, for a model whose inputs have no length: the one of images."""
_FEW = 2
"""The counts are first printed after so many lengths: the second one makes a program for any length."""
_LAYERS = 2
_BATCH = 2
_DIRECTORY = "FUSIONCACHE_DIR"


def print_model(spec: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the sections of a ``model`` in some ``modes``, each from a process that has only done imports."""
    # Before imports that read them.
    for name in [name for name in os.environ if name.startswith(("FUSIONCACHE_", "THUNDER_")) and name != _DIRECTORY]:
        del os.environ[name]
    model, package = spec["model"], zoo.find_entry(spec["model"]).package
    for module in ("fusioncache", "thunder.dynamo", package, "benchmarks.common.thunder_jit"):
        import_module(module)
    names = ("lightning-thunder", "torch", package)
    versions = "\n".join(f"{name} {version(name).partition('+')[0]}" for name in names)  # without local builds
    sections = [Section("versions", versions)]
    for mode in spec["modes"]:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as process:  # modes share no state
            sections += process.submit(_print_mode, model, mode).result()
    return [asdict(section) for section in sections]


def _print_mode(model: str, mode: str) -> list[Section]:
    directory = Path(os.environ[_DIRECTORY], mode)
    directory.mkdir(parents=True)
    os.environ[_DIRECTORY] = str(directory)
    return list(_Printer(model, mode).print())


class _Printer:
    """Prints a compiled model. ``known`` contains the printed entries of Thunder's caches, by identity."""

    def __init__(self, model: str, mode: str):
        import torch

        import fusioncache
        from benchmarks.common.thunder_jit import executors

        torch.set_num_threads(1)
        # By default Dynamo gives a model up after eight graphs.
        torch._dynamo.config.recompile_limit = 8 * len(LENGTHS)
        self.mode = mode
        self.workload = zoo.make(model, _LAYERS, sequence=max(LENGTHS), batch=max(_BATCH, max(_ROWS)))
        cache = fusioncache.Cache(record=False, store=True)
        self.transform: Any = fusioncache.FusionCache(cache=cache, backend="eager", jobs=0)
        self.compiled: Any = self.workload.compile(executors("eager"), [self.transform])
        self.known: dict[int, Any] = {}

    def print(self) -> Iterator[Section]:
        has_lengths = not self.workload.inputs[0].is_floating_point()
        settings = [(_BATCH, length) for length in LENGTHS] if has_lengths else [(rows, max(LENGTHS)) for rows in _ROWS]
        count = len(settings)
        for position, (rows, length) in enumerate(settings):
            where = f"{self.mode}, {f'length {length}' if has_lengths else f'{rows} rows'}"
            self._call(rows, length)
            yield from self._print_programs(where, in_full=position < _FEW or position + 1 == count)
            if position + 1 in (_FEW, count):
                yield Section(f"{self.mode}, after {position + 1}: stats", self._print_stats())
        after = f"{self.mode}, after {count}"
        yield Section(f"{after}: templates", self._print_templates())
        yield Section(f"{after}: stored keys", self._print_store())

    def _call(self, rows: int, length: int) -> None:
        import torch

        from benchmarks.common.tensors import cotangent
        from benchmarks.equality.lengths import cut

        inputs = [cut(each, rows, length, max(LENGTHS)) for each in self.workload.inputs]
        if self.mode == FORWARD:
            with torch.no_grad():
                self.compiled(*inputs)
            return
        self.workload.model.zero_grad(set_to_none=True)
        output = self.compiled(*inputs)
        output.backward(cotangent(output))

    def _print_programs(self, where: str, *, in_full: bool) -> Iterator[Section]:
        """Yields a section for each trace of the new programs with ``in_full``, otherwise one with digests of all."""
        found = list(self._find_new())
        lines = []
        for name, text in found:
            if in_full:
                yield Section(f"{where}: {name}", text)
            else:
                digest = hashlib.sha256(text.encode()).hexdigest()[:16]
                lines.append(f"{name}: {digest}, {text.count(chr(10)) + 1} lines")
        if lines or not found:
            yield Section(f"{where}: digests of traces" if found else where, "\n".join(lines) or "no new program")

    def _find_new(self) -> Iterator[tuple[str, str]]:
        digests = self._map_digests()
        functions = [self.compiled]
        if self.workload.way == "thunderfx":
            functions = [each for info in self.compiled._backend.subgraph_infos for each in info.thunder_compiled_fns]
        for number, function in enumerate(functions, 1):
            entries = [each for each in _list_entries(function) if id(each) not in self.known]
            self.known.update((id(each), each) for each in entries)
            for which, entry in enumerate(entries, 1):
                graph = f"graph {number}, " if self.workload.way == "thunderfx" else ""
                program = f"program {which}, " if len(entries) > 1 else ""
                for kind in ("prologue", "computation", "backward", "epilogue"):
                    if traces := getattr(entry, f"{kind}_traces"):
                        yield f"{graph}{program}{kind}", normalize(str(traces[-1]), digests)

    def _map_digests(self) -> dict[str, str]:
        return {each.digest[:8]: _digest_graph(each)[:8] for each in self.transform.cache.templates()}

    def _print_stats(self) -> str:
        digests, lines = self._map_digests(), []
        stats = self.transform.stats()
        for name in (each.name for each in fields(stats) if not each.name.endswith("seconds")):
            value = getattr(stats, name)
            if not value:
                continue
            lines.append(f"{name}: {value if isinstance(value, int) else sum(value.values())}")
            if not isinstance(value, int):
                lines += sorted(f"  {normalize(reason, digests)}: {count}" for reason, count in value.items())
        return "\n".join(lines)

    def _print_templates(self) -> str:
        from fusioncache.ir.keys import GRAPH

        digests, lines = self._map_digests(), []
        for each in self.transform.cache.templates():
            lines.append(f"{normalize(each.name, digests)}: {_digest_graph(each)[:16]}")
            lines.append(f"  {each.ops} ops, {each.regions} regions, {each.hits} hits, arities {each.arities}")
            texts = [f"{name} {_digest(text)[:8]}" for name, text in each.ingredients if name in GRAPH]
            others = [name for name, _ in each.ingredients if name not in GRAPH]
            lines += [f"  {', '.join(texts)}", f"  {', '.join(others)}"]
        return "\n".join(lines)

    def _print_store(self) -> str:
        store, digests = self.transform.cache.store, self._map_digests()
        found: Counter[str] = Counter()
        for summary in store.entries():
            entry = store.entry(summary.digest, summary.backend)
            lines = [f"{entry.backend} of {normalize(entry.name, digests)}"]
            lines += [f"  artifact {each.name}" for each in entry.artifacts]
            lines += [f"  ingredient {name}" for name, _ in entry.ingredients]
            found["\n".join(lines)] += 1
        return "\n".join(f"{count} times {text}" for text, count in sorted(found.items()))


def _list_entries(function: Any) -> list[Any]:
    import thunder

    entries = thunder.compile_stats(function).interpreter_cache
    return [entries[position] for position in range(len(entries))]  # iteration may query the store


def _digest_graph(template: Any) -> str:
    """Returns a digest of the part of a template's key that depends on no machine."""
    from fusioncache.ir.keys import graph_digest

    return graph_digest((name, _digest(text)) for name, text in template.ingredients)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    serve(print_model)
