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
from fusioncache.process.forks import LruMap
from fusioncache.template.plan import Arities

type Environments = Callable[[BackendExecutables], Mapping[str, str]]
"""Returns the ingredients of a backend's templates other than their graphs, by name."""


def read_once() -> Environments:
    """Returns a function that reads a backend's environment at the first call for it, and then repeats it."""
    return remember(lambda executables: executables.backend.environment())


MOST_CALLED = 4096
"""How many templates preserve their calls although possibly no program uses them."""


class _TemplateGroup:
    """The calls of one template: one for each way in which regions write it. Each call keeps its group alive.

    Args:
        called: called with the template at the end of each first call for a layout.

    Attributes:
        calls: the calls.
    """

    def __init__(self, called: Callable[[Template], None]):
        self.calls: list[TemplateCall] = []
        self._called = called

    def note_first_call(self, template: Template) -> None:
        """Reports the end of a first call. Each call holds this method, and so keeps its group alive."""
        self._called(template)


class TemplateCalls:
    """The calls of templates in the traces of one transform.

    A call lives as long as a program uses it. Of unused calls the most recent ones stay.

    Args:
        called: called with the template at the end of each first call for a layout.
    """

    def __init__(self, called: Callable[[Template], None]):
        self._groups: WeakValueDictionary[str, _TemplateGroup] = WeakValueDictionary()
        self._named: WeakValueDictionary[str, _TemplateGroup] = WeakValueDictionary()
        self._recent: LruMap[str, _TemplateGroup] = LruMap(MOST_CALLED)
        self._called = called

    def all(self) -> tuple[TemplateCall, ...]:
        """Returns all calls: one for each way in which regions write a template."""
        return tuple(call for group in self._groups.values() for call in group.calls)

    def find_template(self, digest: str) -> Template | None:
        """Returns the called template whose key has this digest, or None."""
        group = self._groups.get(digest)
        return group.calls[0].template if group and group.calls else None

    def find_call(
        self,
        template: Template,
        instances: Mapping[Arities, Instance],
        executables: BackendExecutables,
        generation: Generation | None = None,
    ) -> TemplateCall:
        """Returns the call of a template for such regions. Makes it at the first request of this program."""
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
    """Returns an unused name for a template's calls; template names may collide, because they are truncated."""
    names = chain((template.name,), (f"{template.name}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken)
