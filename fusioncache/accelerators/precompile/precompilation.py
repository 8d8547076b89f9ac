"""The accelerator that compiles what the calls of a trace will need, before they are called."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fusioncache.accelerators.precompile.ahead import find_batch_compiler, find_helpers
from fusioncache.accelerators.precompile.foresight import Foresight
from fusioncache.accelerators.precompile.pool import choose_jobs
from fusioncache.accelerators.programs.program_list import is_ahead
from fusioncache.cache.peers import Helpers
from fusioncache.observe.record.ledger import Ledger
from fusioncache.transform.passes import Accelerator, TraceContext
from fusioncache.transform.shared_region import SharedRegion
from fusioncache.transform.transform import TemplateTransform

logger = logging.getLogger("fusioncache")


class Precompilation(Accelerator):
    """Hands the regions of each trace over to helpers.

    Args:
        helpers: compile beside this process, or all regions of a program together.
        ledger: counts what is handed over.

    Attributes:
        helpers: the same.
    """

    name = "precompile"

    def __init__(self, helpers: Helpers, ledger: Ledger):
        self.helpers = helpers
        self._ledger = ledger

    def foresee(self, trace: Any, regions: Sequence[SharedRegion], context: TraceContext) -> None:
        """Has the helpers compile what the calls of a trace will ask for. Never raises."""
        foresight = Foresight(context.left.get(self.name))
        context.leaves[self.name] = foresight.layouts
        if is_ahead():
            return
        try:
            foresight.read_trace(trace, {one.position: one for one in regions})
            wanted = {
                (id(one.call), one.binding.arities, layouts): one.call
                for one in regions
                if (layouts := foresight.layouts_of(one.fusion, one.binding)) is not None
            }
            asks = [ask for (_, arities, layouts), call in wanted.items() for ask in call.foresee(arities, layouts)]
            self._ledger.count("handed_over", self.helpers.hand_over(asks))
        except Exception as error:  # whatever it is, this process compiles for itself
            logger.info("nothing is compiled beside", exc_info=error)


def find_precompilation(transform: TemplateTransform, jobs: int | None, *, compares: bool) -> Precompilation | None:
    """Returns what compiles beside or before the calls of a transform; None if each call compiles for itself.

    Args:
        transform: it.
        jobs: how many processes compile; None for as many as pay.
        compares: whether results are compared, so that no process pays.
    """
    cache, compiler = transform.cache, transform.compiler
    processes = choose_jobs(jobs, "" if compares else compiler)
    helpers = find_helpers(cache, processes, compiler) or find_batch_compiler(cache, compiler)
    return None if helpers is None else Precompilation(helpers, transform.ledger)
