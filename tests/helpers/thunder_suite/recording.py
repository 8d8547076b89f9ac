"""A pytest plugin, the same with and without fusioncache: picks tests, seeds each one, writes down how each ended."""

import json
import random
import re
import sys
import zlib
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from thunder_suite.settings import Selection, Settings, read

_LONGEST_MESSAGE = 4000


def picked(ids: list[str], settings: Settings) -> set[str]:
    """The ids that are to run."""
    if settings.only:
        return set(settings.only) & set(ids)
    by_file = defaultdict(list)
    for id_ in sorted(ids):
        by_file[Path(id_.split("::")[0]).name].append(id_)
    return {id_ for name, found in by_file.items() for id_ in _sample(found, settings.files.get(name, Selection()))}


def _sample(ids: list[str], selection: Selection) -> list[str]:
    names = {id_: id_.split("::", 1)[-1] for id_ in ids}
    wanted = [id_ for id_ in ids if re.search(selection.pattern, names[id_])]
    if selection.leave:
        wanted = [id_ for id_ in wanted if not re.search(selection.leave, names[id_])]
    return wanted[:: selection.sample]


def forward_nvfuser() -> None:
    """Lets Thunder 0.2.6 run with an nvFuser that ships its direct bindings only.

    Thunder asks a module ``nvfuser`` for one function. Both runs need that, and the run without fusioncache must not
    import fusioncache to get it.
    """
    if find_spec("nvfuser_direct") is None or "nvfuser" in sys.modules or find_spec("nvfuser") is not None:
        return
    import nvfuser_direct

    module = ModuleType("nvfuser")
    for name in ("compute_tensor_descriptor", "version"):
        setattr(module, name, getattr(nvfuser_direct, name))
    sys.modules["nvfuser"] = module


class Recorder:
    """Appends events to the file of results. Only pytest's main process writes; workers report to it."""

    def __init__(self, settings: Settings, *, writes: bool):
        self._settings = settings
        self._file = Path(settings.results) if writes else None

    @pytest.hookimpl(trylast=True)  # after Thunder's own sorting
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        wanted = picked([item.nodeid for item in items], self._settings)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._write({"collected": [item.nodeid for item in session.items]})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._write({"collected": list(ids)})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"id": report.nodeid, "when": "collect", "outcome": "failed", "message": _message(report)})
        elif report.skipped:
            self._write({"id": report.nodeid, "when": "collect", "outcome": "skipped", "message": _message(report)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        seed = zlib.crc32(item.nodeid.encode())
        random.seed(seed)
        for name in ("numpy", "torch"):
            if name in sys.modules:
                module: Any = sys.modules[name]
                (module.random.seed if name == "numpy" else module.manual_seed)(seed)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        event = {"id": report.nodeid, "when": report.when, "outcome": report.outcome, "seconds": report.duration}
        event |= {"xfail": True} if hasattr(report, "wasxfail") else {}
        event |= {"message": _message(report)} if report.outcome != "passed" else {}
        self._write(event | dict(report.user_properties))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write({"finished": int(exitstatus)})

    def _write(self, event: dict[str, Any]) -> None:
        if self._file:
            with self._file.open("a") as file:  # complete at all times: a run may be stopped
                file.write(json.dumps(event, default=str) + "\n")


def _message(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[:_LONGEST_MESSAGE]
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[-1])[:_LONGEST_MESSAGE]
    return str(report.longrepr)[-_LONGEST_MESSAGE:]


def pytest_configure(config: pytest.Config) -> None:
    settings = read()
    if settings:
        forward_nvfuser()
        config.pluginmanager.register(Recorder(settings, writes=not hasattr(config, "workerinput")), "thunder-suite")
