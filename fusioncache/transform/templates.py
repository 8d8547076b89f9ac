"""The calls of templates in the traces of one transform."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import cache as remember
from itertools import chain, count
from weakref import WeakValueDictionary

from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.call import TemplateCall
from fusioncache.cache.generals import Generation
from fusioncache.ir import Instance, Template
from fusioncache.process.collector import collect_behind
from fusioncache.process.forks import LruMap
from fusioncache.template.plan import Arities

type Environments = Callable[[BackendExecutables], Mapping[str, str]]
"""Returns what the templates of a backend depend on beside their graphs, by the name of the ingredient."""


def read_once() -> Environments:
    """Returns what reads the environment of each backend at the moment when it is first asked for."""
    return remember(lambda executables: executables.backend.environment())


MOST_CALLED = 4096
"""How many templates keep their calls although no program may have them any more."""


class _TemplateGroup:
    """The calls of one template: one for each way in which regions write it. It lives as long as one of them does.

    Args:
        called: is told at the end of each first call for a layout, and of the seconds of a full collection behind it.

    Attributes:
        calls: these.
    """

    def __init__(self, called: Callable[[Template, float], None]):
        self.calls: list[TemplateCall] = []
        self._called = called

    def note_first_call(self, template: Template, seconds: float) -> None:
        """Is told at the end of a first call. Each call has this method, and so keeps its group."""
        self._called(template, collect_behind(seconds))


class TemplateCalls:
    """The calls of templates that the traces of one transform have.

    A call stays as long as a program has it. Of those that no program has the last ones stay.

    Args:
        called: is told at the end of each first call for a layout, and of the seconds of a full collection behind it.
    """

    def __init__(self, called: Callable[[Template, float], None]):
        self._groups: WeakValueDictionary[str, _TemplateGroup] = WeakValueDictionary()
        self._named: WeakValueDictionary[str, _TemplateGroup] = WeakValueDictionary()
        self._recent: LruMap[str, _TemplateGroup] = LruMap(MOST_CALLED)
        self._called = called

    def all(self) -> tuple[TemplateCall, ...]:
        """Returns the templates that are called: once for each way in which regions write them."""
        return tuple(call for group in self._groups.values() for call in group.calls)

    def find_template(self, digest: str) -> Template | None:
        """Returns the template that is called and whose key has this digest, if there is one."""
        group = self._groups.get(digest)
        return group.calls[0].template if group and group.calls else None

    def find_call(
        self,
        template: Template,
        instances: Mapping[Arities, Instance],
        executables: BackendExecutables,
        generation: Generation | None = None,
    ) -> TemplateCall:
        """Returns the call of a template for such regions, which is made, for this program, if it is not there."""
        group = self._find_group(template.key.digest)
        call = next((call for call in group.calls if call.claim_all(instances)), None)
        if call is None:
            name = choose_name(template, self._named)
            self._named[name] = group
            call = TemplateCall(template, executables, name, group.note_first_call, generation, self._count_uncalled)
            call.claim_all(instances)
            group.calls.append(call)
        return call

    def _count_uncalled(self) -> int:
        return sum(not call.begun for call in self.all())

    def _find_group(self, digest: str) -> _TemplateGroup:
        group, _ = self._recent.get_or_make(digest, lambda: self._groups.get(digest) or _TemplateGroup(self._called))
        self._groups.setdefault(digest, group)
        return group


def choose_name(template: Template, taken: Container[str]) -> str:
    """Returns a name for a template's calls: two templates may have one name, as it is cut short."""
    names = chain((template.name,), (f"{template.name}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken)
