"""A pytest plugin: picks and seeds tests, writes down how each ended; puts ``FusionCache`` into ``thunder.jit``."""

import functools
import json
import os
import random
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

VARIABLE = "FUSIONCACHE_THUNDER_SUITE"
"""Names the file of settings that ``run.py`` writes."""


def _pick(ids: list[str], settings: dict[str, Any]) -> set[str]:
    if settings["only"]:
        return set(settings["only"]) & set(ids)
    by_file = defaultdict(list)
    for id_ in sorted(ids):
        file, _, name = id_.partition("::")
        pattern, leave, _ = settings["selections"][Path(file).name]
        if re.search(pattern, name) and not (leave and re.search(leave, name)):
            by_file[Path(file).name].append(id_)
    return {id_ for file, found in by_file.items() for id_ in found[:: settings["selections"][file][2]]}


def _forward_nvfuser() -> None:
    """Lets Thunder 0.2.6 run with an nvFuser that ships its direct bindings only, without importing fusioncache."""
    if find_spec("nvfuser_direct") is None or "nvfuser" in sys.modules or find_spec("nvfuser") is not None:
        return
    import nvfuser_direct

    module = ModuleType("nvfuser")
    for name in ("compute_tensor_descriptor", "version"):
        setattr(module, name, getattr(nvfuser_direct, name))
    sys.modules["nvfuser"] = module


class Injector:
    """Stands in for ``thunder.jit``, and counts what became of the calls of each test."""

    def __init__(self, jit: Callable[..., Any], backend: str):
        from fusioncache.backends.nvfuser.backend import nvfuser_problem

        self._jit, self._backend = jit, backend
        self._makes_regions = nvfuser_problem() is not None
        self.start()

    def start(self) -> None:
        from fusioncache import Cache

        self._transforms: list[Any] = []
        self._cache = Cache(record=False)

    def count(self) -> dict[str, int]:
        counts: Counter[str] = Counter(calls=len(self._transforms))
        for stats in (transform.stats() for transform in self._transforms):
            counts.update(regions=stats.regions, hits=stats.hits, misses=stats.misses, compiles=stats.compiles)
            counts.update({f"bypassed: {reason}": number for reason, number in stats.bypasses.items()})
        return counts

    def put_in_place(self) -> None:
        @functools.wraps(self._jit)  # with its signature, which thunderfx reads
        def jit(fn: Any, /, **options: Any) -> Any:
            return self._jit(fn, **self._add_fusioncache(options))

        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is self._jit:
                    setattr(module, name, jit)
        if self._backend == "eager":  # what is bypassed is not to wait for a compiler either
            sys.modules["fusioncache.transform.executor"].best_backend = lambda device: "eager"  # type: ignore[attr-defined]

    def _add_fusioncache(self, options: dict[str, Any]) -> dict[str, Any]:
        from fusioncache import FusionCache

        given = options.get("transforms")
        if given is not None and not isinstance(given, list | tuple):
            return options  # what Thunder says to it is what the test is about
        if self._makes_regions:
            options = options | self._add_executor(options)
        if any(isinstance(transform, FusionCache) for transform in given or ()):
            return options  # Thunder's add_transform calls jit again with all that it was given before
        transform = FusionCache(cache=self._cache, backend=self._backend)
        self._transforms.append(transform)
        return options | {"transforms": [*(given or ()), transform]}

    def _add_executor(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the given executors, with fusioncache's ahead of PyTorch's, which takes what is left."""
        from thunder.extend import get_executor, resolve_executors

        from fusioncache.transform.executors import NAME

        option = "executors_list" if options.get("executors") is None and "executors_list" in options else "executors"
        executors, own = list(resolve_executors(options.get(option))), get_executor(NAME)
        names = [executor.name for executor in executors]
        if own not in executors:
            executors.insert(names.index("torch") if "torch" in names else len(names), own)
        return {option: executors}


class Recorder:
    """Appends events to the file of results. Only pytest's main process writes; workers report to it."""

    def __init__(self, settings: dict[str, Any], *, writes: bool):
        self._settings = settings
        self._file = Path(settings["results"]) if writes else None
        self._injector: Injector | None = None
        if settings["inject"]:
            import thunder

            self._injector = Injector(thunder.jit, settings["inject"])
            self._injector.put_in_place()

    @pytest.hookimpl(trylast=True)  # after Thunder's own sorting
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = _pick([item.nodeid for item in items], self._settings)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._write({"collected": [item.nodeid for item in session.items]})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._write({"collected": list(ids)})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            outcome = "error" if report.failed else report.outcome
            self._write({"id": report.nodeid, "when": "collect", "outcome": outcome, "message": _read_message(report)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._injector:
            self._injector.start()
        seed = zlib.crc32(item.nodeid.encode())
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if self._injector:
            item.user_properties.append(("counts", self._injector.count()))

    def pytest_runtest_logreport(self, report):
        event = {"id": report.nodeid, "when": report.when, "outcome": _name_outcome(report)}
        event |= {"message": _read_message(report)} if report.outcome != "passed" else {}
        self._write(event | dict(report.user_properties))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write({"finished": int(exitstatus)})

    def _write(self, event: dict[str, Any]) -> None:
        if self._file:
            with self._file.open("a") as file:  # complete at all times: a run may be stopped
                file.write(json.dumps(event, default=str) + "\n")


def _name_outcome(report):
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if not report.failed:
        return report.outcome
    message = _read_message(report)
    if "crashed while running" in message:
        return "crashed"
    if re.search(r"Timeout.*>\s*[\d.]+s", message):
        return "timeout"
    return "failed" if report.when == "call" else "error"


def _read_message(report):
    found = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(found.reprcrash.message if getattr(found, "reprcrash", None) else found)[-4000:]


def pytest_configure(config: pytest.Config) -> None:
    if file := os.environ.get(VARIABLE):
        _forward_nvfuser()
        recorder = Recorder(json.loads(Path(file).read_text()), writes=not hasattr(config, "workerinput"))
        config.pluginmanager.register(recorder, "thunder-suite")
