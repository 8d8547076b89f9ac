"""Conversion between the calls of templates in traces and references to templates in stored programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

from fusioncache.accelerators.programs.general import Identity
from fusioncache.accelerators.programs.options import resolve_part
from fusioncache.accelerators.programs.text import Reference, TemplateReference, TemplateUse
from fusioncache.backends.bound_symbols import bind, on_each_gpu
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.cache import Cache
from fusioncache.cache.call import Fallback, TemplateCall
from fusioncache.cache.generals import Generation
from fusioncache.cache.peers import StoreRequest
from fusioncache.ir import Declined, Graph, Scope, Template
from fusioncache.template.plan import Plan, inline
from fusioncache.transform.rewrite import fuse
from fusioncache.transform.shared_region import RegionBackends
from fusioncache.transform.templates import Environments, TemplateCalls, choose_name, read_once


def find_references(calls: Iterable[TemplateCall]) -> Callable[[Any], TemplateReference | None]:
    """Returns a function from an object in a trace to the reference of the template that it calls; None for others."""
    by_function = {call.target.function: call for call in calls}

    def find(function: Any) -> TemplateReference | None:
        call = by_function.get(function) if isinstance(function, FunctionType) else None
        return None if call is None else refer_to(call)

    return find


def refer_to(call: TemplateCall) -> TemplateReference | None:
    """Returns a reference to the template of a call; None if another process could not make the same call."""
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
    """Loads the template calls of one stored program, under the current settings, and the parts of its job.

    Attributes:
        cache: has the templates.
        backends: compile them.
        calls: those of the transform; new calls are added.
        compile_data: Thunder's ``CompileData`` of the compiled function.
        generation: the program; None if the loader makes no calls.
        environments: returns the dependencies of a backend's templates besides their graphs; by default reads them
            anew.
    """

    cache: Cache
    backends: RegionBackends
    calls: TemplateCalls
    compile_data: Any
    generation: Generation | None = None
    environments: Environments = field(default_factory=read_once)

    def __call__(self, reference: Reference) -> Any:
        """Returns the function that calls a template, or a part of the job, for a trace that ``build_program`` builds.

        Raises:
            ValueError: if it differs from the stored one.
        """
        if isinstance(reference, TemplateReference):
            return self.load(reference).target.function
        return resolve_part(reference, self.compile_data)

    def load(self, reference: TemplateReference) -> TemplateCall:
        """Returns the call of a template in a stored program.

        Raises:
            ValueError: if the template has another digest here because of its backend or the settings, if the backend
                does not support it, or if the executor that made its regions is missing.
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
        """Returns the names and digests of a program's templates in this process. Ignores the references' digests.

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

    def foresee(self, reference: TemplateReference) -> Iterator[StoreRequest]:
        """Yields the store requests of a template's first calls in a later program. Code for any sizes has none."""
        template, executables = self._find_template(reference)
        for use in reference.uses if executables.backend.derives_sizes else ():
            if use.plan is Plan.INLINE:
                graph, instance = inline(template.graph, use.arities), use.instance.compiled
                for layouts in use.layouts:
                    yield from executables.foresee(graph, instance, None, layouts)

    def _find_template(self, reference: TemplateReference) -> tuple[Template, BackendExecutables]:
        executables = self.backends.find_backend(reference.backend, dict(reference.options))
        return self.cache.template(reference.graph, self.environments(executables))[0], executables

    def _make_fallback(self, use: TemplateUse) -> Fallback:
        """Returns the fallback for a stored template: the region as Thunder made it, rebuilt at the first call.

        It is bitwise the region in the process that stored it. The instance has all operations of that region but dead
        code, in the same order, with the same operands, literals, dtypes and shapes. The executor with the same name
        fuses them, as it did then. The program's key ensures that it is the same executor with the same options. Only
        the names of values differ, and no executor's result depends on names.
        """
        executor = next((each for each in self.compile_data.executors_list if each.name == use.executor), None)
        if executor is None or not hasattr(executor, "fuse"):
            raise ValueError(f"there is no executor {use.executor} that fuses")
        make = partial(_make_region, executor, dict(self.compile_data.compile_options), use.instance.region)
        run = on_each_gpu(use.instance.region, make)
        return Fallback(lambda *args: run(args), use.instance.inputs, use.instance.outputs, use.executor)


def _make_region(executor: Any, compile_options: Mapping[str, Any], region: Graph, gpu: int) -> Callable[..., Any]:
    """Returns the function that an executor makes of a region.

    Args:
        executor: of Thunder.
        compile_options: those of ``thunder.jit``, which executors read.
        region: as Thunder wrote it.
        gpu: the index of the GPU that has the inputs.
    """
    from fusioncache.thunder_adapter.api import CompileData, CompileStats, compile_data_and_stats

    bound = bind(region, gpu)
    options = CompileData(
        fn=_make_region, executors_list=(), disable_preprocessing=True, compile_options=dict(compile_options)
    )
    with compile_data_and_stats(options, CompileStats()):
        fusion = fuse(executor, 0, bound.inputs, bound.outputs, bound.bound_symbols)
    return fusion._call_ctx[fusion.sym.name]
