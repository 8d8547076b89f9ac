"""The objects that users register with Thunder: the transform with its accelerators, the plugin, and the executors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal

from fusioncache.accelerators.attention import NAME as ATTENTION
from fusioncache.accelerators.graphs.graph_capture import CudaGraphs
from fusioncache.accelerators.precompile.pool import end_unused
from fusioncache.accelerators.programs.programs import ProgramKeeper
from fusioncache.accelerators.registry import Options, find_unwanted, make_accelerators
from fusioncache.accelerators.residual.plans import Choice, ResidualOptions, ResidualPlan
from fusioncache.accelerators.residual.recompute import ResidualStreams
from fusioncache.accelerators.schedule.order import Placement
from fusioncache.accelerators.schedule.scheduling import CollectiveOptions, Collectives
from fusioncache.accelerators.sizes.scaling import check_lengths
from fusioncache.accelerators.steps.lean_steps import LeanSteps, check_lean
from fusioncache.backends.api import problem
from fusioncache.cache.cache import Cache
from fusioncache.cache.generals import choose_sizes
from fusioncache.process.settings import EXPLAIN, PROGRAMS
from fusioncache.template.plan import Plan
from fusioncache.thunder_adapter.accelerator_api import Plugin as ThunderPlugin
from fusioncache.thunder_adapter.accelerator_api import PluginPolicy
from fusioncache.thunder_adapter.capabilities import explain_limits, find_off
from fusioncache.transform.executors import list_executors
from fusioncache.transform.passes import Accelerator
from fusioncache.transform.transform import TemplateTransform
from fusioncache.verification.verifier import choose_mode

if TYPE_CHECKING:
    from fusioncache.thunder_adapter.api import Executor

type Attention = Literal["thunder", "cudnn"]

_PLANS = {ResidualPlan.INLINE: Plan.INLINE, ResidualPlan.FOLD: Plan.FOLD}


class FusionCache(TemplateTransform):
    """Compiles each fusion region's template once.

    Register it with ``thunder.jit(model, transforms=[fusioncache.FusionCache()])``. A region that cannot be shared
    stays as Thunder made it, and the reason is counted. In a version of Thunder that was not tried, regions share
    templates, and the first call of each template is verified. An accelerator is on there if the functions that it
    relies on are known or pass a probe.

    A region is compiled at the first call with each layout of its arguments, under the current settings of torch and
    TorchInductor. The executable is shared under equal settings only. Later calls use it under any settings, until
    Thunder traces again. If a setting cannot be compared, such as a custom pass of TorchInductor without a ``uuid``,
    regions stay as Thunder made them.

    The first ``FusionCache`` of a process also adds to Thunder what it lacks for training with grouped products, so
    that a layer of experts is one program for any routing: see ``grouped_products.py``.

    Args:
        cache: the cache of templates; by default one cache that the whole process shares.
        backend: ``"nvfuser"``, ``"inductor"``, ``"eager"``, or ``"auto"``: the compiler that the region was made for,
            where there is one, else the best that works here.
        recompute: ``"residual"`` saves no sum of a residual stream for backward that can be rebuilt there from other
            saved values, bit for bit. Outputs and gradients stay the same. Under TorchInductor, which rounds bfloat16
            and float16 only where a kernel stores them, such sums are saved as before.
        residual: how regions compute the sums of a residual stream that rematerialization, or ``recompute``, makes
            them recompute: ``"inline"``, ``"fold"``, ``"carry"``, ``"segmented"``, or ``"auto"``, the least memory at
            a price that is linear in depth.
        memory_budget: with ``"auto"`` and ``"segmented"``: how many bytes of one stream's sums may be kept alive.
        fast_tracing: whether to install shortcuts in Thunder's tracing, which takes most of a first step once
            compiling does not. Traces stay the same. It replaces functions of Thunder in the whole process:
            ``fusioncache.tracing.uninstall()`` restores them.
        verify: whether each region is also compiled alone, and its results compared with those of its template, in its
            first call for each layout, or with ``"all"`` in every call; a difference raises a
            ``fusioncache.VerificationError``. ``stats()`` counts the verified regions. None asks the environment:
            ``FUSIONCACHE_VERIFY`` is 0, 1 or ``all``.
        explain: whether to print to stderr, after each new template was compiled, which template is nearest and which
            ingredient differs; loaded templates take one line. None asks the environment: ``FUSIONCACHE_EXPLAIN`` is 0
            or 1.
        jobs: the number of background processes, which compile what the store lacks as soon as a trace is ready. None
            asks the environment, ``FUSIONCACHE_JOBS``; the default is some where nvFuser has the cores for it, and 0
            in verify mode, with few cores, or without a store.
        schedule: ``"auto"`` moves the collectives of a model that ranks share by Thunder's ``fsdp`` or ``ddp`` to where
            they run beside what is computed: gathers in order of need, reduces behind the gradients that they add up.
            With ``FSDPType.ZERO3`` shards are saved for backward, which gathers them again. Every bit stays the same.
            ``"thunder"`` keeps Thunder's schedule: gathers first, reduces last, gathered parameters saved.
        lean: ``"auto"`` removes redundant work from later steps: Thunder's functions around each call of a module,
            views in its programs that change nothing or are duplicates, and copies of tensors into which rows are
            written. Every bit stays the same. ``"thunder"`` removes nothing.
        in_flight_bytes: with ``schedule="auto"``: how many bytes of gathers, and as many of reduces, may be under way
            at a time. None is 512 MiB.
        bucket_bytes: with ``schedule="auto"``: how many bytes of gathers, and of reduces between two ranks, may be
            coalesced, each straight into its own memory. None is a sixteenth of all, 256 MiB at most. Reduces among
            more ranks are not coalesced, because that may change their bits, and neither is anything but over NCCL.
        programs: whether the programs that Thunder makes of a model are stored, so that a later process need not trace
            it again. A program is used if everything that it depends on is equal. ``stats()`` counts programs that were
            loaded or made, and why others were not. None asks the environment: ``FUSIONCACHE_PROGRAMS`` is 0 or 1,
            and 1 by default. Nothing is loaded or stored without ``fast_tracing`` or without a store.
        sizes: which regions that differ only in sizes share a compilation. ``"auto"``: regions of one function. Its
            first program is compiled as it is. Regions of a later one with other sizes are compiled for any sizes, and
            serve further sizes. ``"dynamic"``: any, also of different functions and of one program. ``"static"``: none.
            ``stats()`` counts them, and why some are compiled for one size only. None asks the
            environment: ``FUSIONCACHE_SIZES`` is one of these, and ``auto`` by default.
        lengths: sequence lengths to expect, 256 at most, such as the lengths of a bucketed data loader. Once programs
            of two lengths are known, background processes compile the code of these lengths while no call waits for
            it. That is for nvFuser, whose code for any sizes cannot be stored. ``stats()`` has ``lengths_queued`` and
            ``lengths_compiled``.
        graphs: whether forward and backward are captured in CUDA graphs and replayed. Outputs are copied then,
            gradients are not. None asks the environment: ``FUSIONCACHE_GRAPHS`` is 0 or 1, by default 0.
        accelerators: the names of the accelerators that may be used: ``"programs"``, ``"sizes"``, ``"tracing"``,
            ``"lean steps"``, ``"graphs"``, ``"schedule"``, ``"residual"``, ``"precompile"``, ``"splitting"``. All
            others are off, even if their own options are set. None asks the environment: ``FUSIONCACHE_ACCELERATORS``
            has names with commas between them, or is ``none``; by default all may be used. ``"programs"`` needs
            ``"tracing"``.

    Raises:
        TypeError: if ``cache`` is no ``fusioncache.Cache``, or ``verify``, ``explain``, ``jobs``, ``programs`` or
            ``graphs`` has another type, or a length is not an integer.
        ValueError: if the backend is unknown or does not work here, or another option is none of the above.
    """

    def __init__(
        self,
        *,
        cache: Cache | None = None,
        backend: str = "auto",
        recompute: str | None = None,
        residual: str = "auto",
        memory_budget: int | None = None,
        fast_tracing: bool = True,
        verify: bool | str | None = None,
        explain: bool | None = None,
        jobs: int | None = None,
        programs: bool | None = None,
        sizes: str | None = None,
        graphs: bool | None = None,
        accelerators: Collection[str] | None = None,
        lengths: Iterable[int] | None = None,
        schedule: str = "auto",
        lean: str = "auto",
        in_flight_bytes: int | None = None,
        bucket_bytes: int | None = None,
    ):
        moving = CollectiveOptions.of(schedule, in_flight_bytes, bucket_bytes)
        streams = ResidualOptions.of(recompute, residual, memory_budget)
        check_lean(lean)
        keeps, shares, ahead = PROGRAMS.is_on(programs, default=True), choose_sizes(sizes), check_lengths(lengths)
        requested = Options(fast_tracing, keeps, shares, graphs, lean, moving, streams, jobs, ahead)
        options = requested.without(find_unwanted(accelerators) | (find_off().keys() if explain_limits() else set()))
        mode, explains = choose_mode(verify), EXPLAIN.is_on(explain)
        plan = options.residual.plan
        super().__init__(
            cache=cache,
            backend=backend,
            plan=None if plan is None else _PLANS.get(plan),
            sizes=options.sizes,
            verify=mode,
            explains=explains,
        )
        self.use([*make_accelerators(self, options, mode, explains=explains)])
        end_unused(self.cache)

    def _find[Kind: Accelerator](self, kind: type[Kind]) -> Kind | None:
        return next((each for each in self.accelerators if isinstance(each, kind)), None)

    @property
    def lean(self) -> LeanSteps | None:
        """The accelerator that removes redundant work from later steps; None if it is off."""
        return self._find(LeanSteps)

    @property
    def graphs(self) -> CudaGraphs | None:
        """The accelerator that captures programs; None if none are captured."""
        return self._find(CudaGraphs)

    @property
    def program_keeper(self) -> ProgramKeeper | None:
        """The accelerator that loads and stores programs; None if it is off."""
        return self._find(ProgramKeeper)

    def choices(self) -> tuple[Choice, ...]:
        """Returns how the sums of each residual stream are computed, and the costs of the alternatives.

        It covers the traces made in this process. Only the record has the streams of a loaded program.
        """
        streams = self._find(ResidualStreams)
        return tuple(streams.choices) if streams else ()

    def placements(self) -> tuple[Placement, ...]:
        """Returns how the collectives of each trace were placed: forward, then backward. Each has a ``timeline()``."""
        collectives = self._find(Collectives)
        return tuple(collectives.placements) if collectives else ()


def executors(*, attention: Attention = "thunder") -> list[Executor]:
    """Returns the executors for ``thunder.jit(..., executors=...)``.

    Where nvFuser works these are Thunder's executors, of which nvFuser makes the regions, and one that makes none;
    elsewhere fusioncache's executor makes them. Either way there is one warning for a function without the
    ``FusionCache`` transform: its regions are not shared.

    Args:
        attention: the kernels for ``scaled_dot_product_attention``: ``"thunder"``, torch's kernels, among which Thunder
            chooses, or ``"cudnn"``: torch's cuDNN kernel where torch would choose it, else Thunder's choice. The bits
            of the cuDNN kernel are not Thunder's.

    Raises:
        ValueError: if ``attention`` is neither.
    """
    if attention not in ("thunder", "cudnn"):
        raise ValueError(f'attention is "thunder" or "cudnn", and not {attention!r}')
    if attention == "thunder":
        return list_executors()
    from fusioncache.accelerators.attention.executor import cudnn_attention

    return [cudnn_attention(), *list_executors()]


class Plugin(ThunderPlugin):
    """Registers ``FusionCache`` with ``thunder.compile(model, plugins=[fusioncache.Plugin()])``.

    If nvFuser does not work it adds fusioncache's executor as well. Then Thunder's default recipe refuses to
    start: pass ``recipe=thunder.recipes.BaseRecipe(fuser="torch.compile")``.

    Args:
        attention: as for ``fusioncache.executors``.
        options: as for ``FusionCache``.

    Raises:
        ValueError: if ``attention`` is another name.
    """

    policy = PluginPolicy.PRE

    def __init__(self, *, attention: Attention = "thunder", **options: Any):
        self._executors = executors(attention=attention)
        self.transform = FusionCache(**options)

    def setup_transforms(self) -> list[FusionCache]:
        """Returns the transform. Thunder calls this."""
        return [self.transform]

    def setup_executors(self) -> list[Any]:
        """Returns the executors that Thunder uses besides its own. Thunder calls this."""
        if problem("nvfuser", "cuda") is not None:
            return self._executors
        return [executor for executor in self._executors if executor.name == ATTENTION]
