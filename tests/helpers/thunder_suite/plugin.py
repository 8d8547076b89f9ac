"""A pytest plugin: selects and seeds tests, records their outcomes, and adds ``FusionCache`` to ``thunder.jit``."""

import functools
import json
import os
import random
import re
import sys
import zlib
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

VARIABLE = "FUSIONCACHE_THUNDER_SUITE"
"""The variable with the path of the settings file that ``run.py`` writes."""


def _pick(ids: list[str], settings: dict[str, Any]) -> set[str]:
    picked = set(settings["only"])
    for file, (pattern, sample) in settings["selections"].items() if not picked else ():
        of_file = (id_ for id_ in sorted(ids) if id_.partition("::")[0].endswith(f"/{file}"))
        picked.update([id_ for id_ in of_file if re.search(pattern, id_.partition("::")[2])][::sample])
    return picked


def _forward_nvfuser() -> None:
    """Lets Thunder 0.2.6 run with an nvFuser that ships its direct bindings only, without importing fusioncache."""
    if find_spec("nvfuser_direct") is None or "nvfuser" in sys.modules or find_spec("nvfuser") is not None:
        return
    import nvfuser_direct

    module = ModuleType("nvfuser")
    for name in ("compute_tensor_descriptor", "version"):
        setattr(module, name, getattr(nvfuser_direct, name))
    sys.modules["nvfuser"] = module


class _Injector:
    """Adds ``FusionCache`` to each call of ``thunder.jit``, and collects the counts of a test."""

    def __init__(self, backend: str):
        import thunder

        from fusioncache.backends.nvfuser.backend import nvfuser_problem

        self._backend, self._makes_regions = backend, nvfuser_problem() is not None
        own = thunder.jit

        @functools.wraps(own)  # with its signature, which thunderfx reads
        def jit(fn: Any, /, **options: Any) -> Any:
            return own(fn, **self._add_fusioncache(options))

        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is own:
                    setattr(module, name, jit)
        if backend == "eager":  # bypassed regions must not wait for a compiler either
            sys.modules["fusioncache.transform.executor"].best_backend = lambda device: "eager"  # type: ignore[attr-defined]

    def start(self) -> None:
        from fusioncache import Cache

        self._transforms: list[Any] = []
        self._cache = Cache(record=False)

    def count(self) -> dict[str, int]:
        counts: Counter[str] = Counter(calls=len(self._transforms))
        for stats in (transform.stats() for transform in self._transforms):
            counts.update(regions=stats.regions, hits=stats.hits, misses=stats.misses, compiles=stats.compiles)
            counts.update({f"bypassed: {reason}": number for reason, number in stats.bypasses.items()})
        return dict(counts)  # workers cannot send a subclass of it

    def _add_fusioncache(self, options: dict[str, Any]) -> dict[str, Any]:
        from fusioncache import FusionCache

        given = options.get("transforms")
        if given is not None and not isinstance(given, list | tuple):
            return options  # the test is about Thunder's response to it
        if self._makes_regions:
            options = options | self._add_executor(options)
        if any(isinstance(transform, FusionCache) for transform in given or ()):
            return options  # Thunder's add_transform calls jit again with all that it was given before
        transform = FusionCache(cache=self._cache, backend=self._backend)
        self._transforms.append(transform)
        return options | {"transforms": [*(given or ()), transform]}

    def _add_executor(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the given executors with fusioncache's ahead of PyTorch's, which takes the remaining operations."""
        from thunder.extend import get_executor, resolve_executors

        from fusioncache.transform.executors import NAME

        option = "executors_list" if options.get("executors") is None and "executors_list" in options else "executors"
        executors, own = list(resolve_executors(options.get(option))), get_executor(NAME)
        names = [executor.name for executor in executors]
        if own not in executors:
            executors.insert(names.index("torch") if "torch" in names else len(names), own)
        return {option: executors}


class _Recorder:
    """Appends events to the file of results. Only pytest's main process writes; workers report to it."""

    def __init__(self, settings: dict[str, Any], *, writes: bool):
        self._settings, self._writes = settings, writes
        self._injector = _Injector(settings["inject"]) if settings["inject"] else None

    @pytest.hookimpl(trylast=True)  # after Thunder's own sorting
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = _pick([item.nodeid for item in items], self._settings)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        import numpy
        import torch

        if self._injector:
            self._injector.start()
        for seed in (random.seed, numpy.random.seed, torch.manual_seed):
            seed(zlib.crc32(item.nodeid.encode()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        try:
            return (yield)
        finally:
            if self._injector:
                item.user_properties.append(("counts", self._injector.count()))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"id": report.nodeid, "outcome": "error", "message": report.longreprtext[-4000:]})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        message = "" if report.passed else report.longreprtext[-4000:]
        outcome = "crashed" if "crashed while running" in message else report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        if report.when == "call" or not report.passed:
            counts = dict(report.user_properties).get("counts", {})
            self._write({"id": report.nodeid, "outcome": outcome, "message": message, "counts": counts})

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write({"finished": int(exitstatus)})

    def _write(self, event: dict[str, Any]) -> None:
        if self._writes:
            with Path(self._settings["results"]).open("a") as file:  # complete at all times: a run may be stopped
                file.write(json.dumps(event, default=str) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if file := os.environ.get(VARIABLE):
        _forward_nvfuser()
        recorder = _Recorder(json.loads(Path(file).read_text()), writes=not hasattr(config, "workerinput"))
        config.pluginmanager.register(recorder, "thunder-suite")
