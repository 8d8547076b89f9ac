"""A pytest plugin that gives every call of ``thunder.jit`` a ``FusionCache``, and counts what each test made of it.

``thunder.compile`` and ``thunder.dynamo.thunderfx`` end in ``thunder.jit`` too. Where nvFuser does not work there are
no regions, so that fusioncache's executor makes some there.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from thunder_suite.settings import Settings, read

PROPERTY = "fusioncache"


class Injector:
    """Stands in for ``thunder.jit``."""

    def __init__(self, jit: Callable[..., Any], settings: Settings):
        from fusioncache import Cache
        from fusioncache.backends.nvfuser.backend import nvfuser_problem

        self._jit, self._settings = jit, settings
        self._makes_regions = nvfuser_problem() is not None
        self._new_cache = functools.partial(Cache, record=False)
        self._cache = self._new_cache()
        self._transforms: list[Any] = []

    def start(self) -> None:
        """A test begins."""
        self._transforms = []
        self._cache = self._new_cache()

    def counts(self) -> dict[str, Any]:
        """What the transforms have done since the test began."""
        counts: Counter[str] = Counter(calls=len(self._transforms))
        bypasses: Counter[str] = Counter()
        for stats in (transform.stats() for transform in self._transforms):
            counts.update(regions=stats.regions, hits=stats.hits, misses=stats.misses, compiles=stats.compiles)
            bypasses.update(stats.bypasses)
        return {**counts, "bypasses": dict(bypasses)}

    def replacement(self) -> Callable[..., Any]:
        """The function to put in the place of ``thunder.jit``."""

        @functools.wraps(self._jit)  # with its signature, which thunderfx reads
        def jit(fn: Any, /, **options: Any) -> Any:
            return self._jit(fn, **self._with_fusioncache(options))

        return jit

    def _with_fusioncache(self, options: dict[str, Any]) -> dict[str, Any]:
        from fusioncache import FusionCache

        given = options.get("transforms")
        if given is not None and not isinstance(given, list | tuple):
            return options  # what Thunder says to it is what the test is about
        if self._makes_regions:
            options = options | self._executors(options)
        if any(isinstance(transform, FusionCache) for transform in given or ()):
            return options  # Thunder's add_transform calls jit again with all that it was given before
        transform = FusionCache(cache=self._cache, backend=self._settings.inject or "auto")
        self._transforms.append(transform)
        return options | {"transforms": [*(given or ()), transform]}

    def _executors(self, options: dict[str, Any]) -> dict[str, Any]:
        """The executors that were asked for, and fusioncache's own ahead of PyTorch's, which takes what is left."""
        from thunder.extend import resolve_executors

        name = "executors_list" if options.get("executors") is None and "executors_list" in options else "executors"
        return {name: with_own(resolve_executors(options.get(name)))}


def with_own(executors: Sequence[Any]) -> list[Any]:
    """These executors with fusioncache's among them."""
    from thunder.extend import get_executor

    from fusioncache.transform.executors import NAME

    own = get_executor(NAME)
    if own in executors:
        return list(executors)
    names = [executor.name for executor in executors]
    place = names.index("torch") if "torch" in names else len(names)
    return [*executors[:place], own, *executors[place:]]


class CountingPlugin:
    """Adds the counts of each test to its report."""

    def __init__(self, injector: Injector):
        self._injector = injector

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        self._injector.start()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "call":
            report.user_properties.append((PROPERTY, self._injector.counts()))
        return report


def inject(settings: Settings) -> Injector:
    """Puts fusioncache wherever ``thunder.jit`` is bound."""
    import thunder

    original = thunder.jit
    injector = Injector(original, settings)
    replacement = injector.replacement()
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is original:
                setattr(module, name, replacement)
    if settings.inject == "eager":  # what is bypassed is not to wait for a compiler either
        sys.modules["fusioncache.transform.executor"].best_backend = lambda device: "eager"  # type: ignore[attr-defined]
    return injector


def pytest_configure(config: pytest.Config) -> None:
    settings = read()
    if settings and settings.inject:
        config.pluginmanager.register(CountingPlugin(inject(settings)), "thunder-suite-counts")
