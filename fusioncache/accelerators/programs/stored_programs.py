"""The accelerator that stores whole programs, and loads those that other processes stored."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fusioncache.accelerators.programs.programs import ProgramKeeper, ProgramTemplates
from fusioncache.accelerators.programs.splits import split_memory_of_process
from fusioncache.cache.peers import Helpers
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.passes import Accelerator
from fusioncache.transform.transform import TemplateTransform


class StoredPrograms(Accelerator):
    """Has Thunder look for programs in the store, and keep there what it derives.

    Args:
        transform: makes the programs.
        helpers: compile for their templates; None if each call compiles for itself.
        explains: whether to say why a program is not loaded.
        verifies: whether a program that is found is derived all the same, and compared.
        replays: whether a program is made from those at other lengths, where that can be.

    Attributes:
        keeper: finds and stores the programs.
    """

    name = "programs"

    def __init__(
        self, transform: TemplateTransform, helpers: Helpers | None, *, explains: bool, verifies: bool, replays: bool
    ):
        install_more("stored programs")
        if replays:
            install_more("sizes")
        cache, ledger = transform.cache, transform.ledger
        templates = ProgramTemplates(
            cache, transform.backends, transform.template_calls, helpers, transform.generations
        )
        self.keeper = ProgramKeeper(cache, ledger, templates, explains=explains, verifies=verifies, replays=replays)

    def around_splitting(self) -> AbstractContextManager[None]:
        """Returns a context in which the splitter's questions are answered from the store."""
        return split_memory_of_process().answering(self.keeper.cache.store)
