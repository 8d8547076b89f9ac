"""The way from the call of a template to its reference in a stored program, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

from fusioncache.accelerators.programs.general import Identity
from fusioncache.accelerators.programs.text import TemplateReference, TemplateUse
from fusioncache.backends.bound_symbols import bind, on_each_gpu
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.cache import Cache
from fusioncache.cache.call import Fallback, TemplateCall
from fusioncache.cache.generals import Generation
from fusioncache.cache.peers import Ask
from fusioncache.ir import Declined, Graph, Scope, Template
from fusioncache.template.plan import Plan, inline
from fusioncache.transform.rewrite import fuse
from fusioncache.transform.shared_region import RegionBackends
from fusioncache.transform.templates import Environments, TemplateCalls, choose_name, read_once


def find_references(calls: Iterable[TemplateCall]) -> Callable[[Any], TemplateReference | None]:
    """Returns what says of what a trace calls or holds which template it stands for; None if it is none of these."""
    by_function = {call.target.function: call for call in calls}

    def find(function: Any) -> TemplateReference | None:
        call = by_function.get(function) if isinstance(function, FunctionType) else None
        return None if call is None else refer_to(call)

    return find


def refer_to(call: TemplateCall) -> TemplateReference | None:
    """Returns a reference to the template that is called; None if another process could not call it alike."""
    uses = tuple(
        TemplateUse(allowed.arities, allowed.plan, allowed.fallback.executor, allowed.instance, allowed.layouts)
        for allowed in call.allowed()
        if allowed.instance is not None
    )
    if len(uses) < len(call.arities()):
        return None
    compiler, template = call.compiler, call.template
    options = tuple(sorted(compiler.options.items()))
    return TemplateReference(compiler.backend.name, options, template.graph, template.key.digest, uses)


@dataclass(frozen=True, slots=True)
class TemplateLoader:
    """Gives the functions for the calls of templates in one stored program, under the settings of this moment.

    Attributes:
        cache: where templates are.
        backends: compile them.
        calls: those of the transform, which get the new ones.
        compile_data: Thunder's, of the function that is compiled.
        generation: the program.
        environments: return what its templates depend on besides; read anew if they are not given.
    """

    cache: Cache
    backends: RegionBackends
    calls: TemplateCalls
    compile_data: Any
    generation: Generation | None = None
    environments: Environments = field(default_factory=read_once)

    def __call__(self, reference: TemplateReference) -> Callable[..., Any]:
        """Returns the function to call in a trace, for ``fusioncache.accelerators.programs.build``."""
        return self.load(reference).target.function

    def load(self, reference: TemplateReference) -> TemplateCall:
        """Returns the call of a template that a stored program has.

        Raises:
            ValueError: if the template is another one here, because of its backend or the settings, or if the executor
                that made its regions is not there.
        """
        try:
            template, executables = self._find_template(reference)
        except (Declined, TypeError) as error:
            if isinstance(error, Declined):
                error.require(Scope.REGION)
            raise ValueError(f"a template cannot be had from the backend {reference.backend}: {error}") from error
        if template.key.digest != reference.digest:
            raise ValueError(f"{template.name} is another template here")
        fallbacks = {use.arities: self._make_fallback(use) for use in reference.uses}
        call = self.calls.find_call(
            template, {use.arities: use.instance for use in reference.uses}, executables, self.generation
        )
        for use in reference.uses:
            call.allow(use.arities, use.plan, fallbacks[use.arities], use.instance)
        return call

    def identify(self, references: Mapping[str, TemplateReference]) -> dict[str, Identity]:
        """Returns the digests and the names that the templates of one program have here, whatever digests they had.

        Raises:
            Declined: if a backend does not have such a template.
        """
        identities: dict[str, Identity] = {}
        taken: set[str] = set()
        for name, reference in references.items():
            template, _ = self._find_template(reference)
            identities[name] = Identity(choose_name(template, taken), template.key.digest)
            taken.add(identities[name].name)
        return identities

    def foresee(self, reference: TemplateReference) -> Iterator[Ask]:
        """Yields the asks of first calls of a template in a later program. Functions for any sizes have none."""
        template, executables = self._find_template(reference)
        for use in reference.uses if executables.backend.derives_sizes else ():
            if use.plan is Plan.INLINE:
                graph, instance = inline(template.graph, use.arities), use.instance.compiled
                asks = (executables.foresee(graph, instance, None, layouts) for layouts in use.layouts)
                yield from (ask for ask in asks if ask is not None)

    def _find_template(self, reference: TemplateReference) -> tuple[Template, BackendExecutables]:
        executables = self.backends.find_backend(reference.backend, dict(reference.options))
        return self.cache.template(reference.graph, self.environments(executables))[0], executables

    def _make_fallback(self, use: TemplateUse) -> Fallback:
        """Returns a region of a stored template as Thunder made it. It is made anew when it is first called.

        Its bits are those of the region in the process that stored it. The instance has every operation of that
        region that anything used, in the same order, with the same operands, literals, dtypes and shapes. The executor
        of the same name makes its call of these, as it did then; that it is the same and has the same options is what
        the program's key says. Only the names of values are others, and no executor computes with names.
        """
        executor = next((each for each in self.compile_data.executors_list if each.name == use.executor), None)
        if executor is None or not hasattr(executor, "fuse"):
            raise ValueError(f"there is no executor {use.executor} that fuses")
        make = partial(_make_region, executor, dict(self.compile_data.compile_options), use.instance.region)
        run = on_each_gpu(use.instance.region, make)
        return Fallback(lambda *args: run(args), use.instance.inputs, use.instance.outputs, use.executor)


def _make_region(executor: Any, compile_options: Mapping[str, Any], region: Graph, gpu: int) -> Callable[..., Any]:
    """Returns a region as this executor makes it.

    Args:
        executor: of Thunder.
        compile_options: those of ``thunder.jit``, which executors ask for.
        region: as Thunder wrote it.
        gpu: the number of the one that inputs lie on.
    """
    from fusioncache.thunder_adapter.api import CompileData, CompileStats, compile_data_and_stats

    bound = bind(region, gpu)
    options = CompileData(
        fn=_make_region, executors_list=(), disable_preprocessing=True, compile_options=dict(compile_options)
    )
    with compile_data_and_stats(options, CompileStats()):
        fusion = fuse(executor, 0, bound.inputs, bound.outputs, bound.bound_symbols)
    return fusion._call_ctx[fusion.sym.name]
