"""Asks a remote for what is not here, until it fails once. Nothing that goes wrong there reaches a model."""

from __future__ import annotations

from contextlib import suppress

from fusioncache.ir import Key
from fusioncache.store.disk import Disk
from fusioncache.store.entry import Artifact, Entry
from fusioncache.store.errors import Refusal, RemoteError
from fusioncache.store.journal import Journal


class ReadThrough:
    """What lies behind a store.

    Args:
        url: of the remote.
        journal: is told what went wrong.
    """

    def __init__(self, url: str, journal: Journal):
        from fusioncache.store.remote import Remote  # most stores have none

        self._remote = Remote(url)
        self._journal = journal
        self._failed = False

    def find(self, key: Key, id_: str, disk: Disk | None, limit: int) -> tuple[Entry, dict[str, bytes]] | None:
        """The entry for this very key and its artifacts; None if the remote has none that can be used. Never raises.

        Args:
            key: whose text decides.
            id_: of the entry.
            disk: where artifacts may be already.
            limit: the most bytes that all of it may have.
        """

        def here(artifact: Artifact) -> bytes | None:
            with suppress(Refusal, OSError):
                return disk.content(artifact) if disk else None
            return None

        if self._failed:
            return None
        remote = self._remote
        try:
            return remote.find(key, id_, limit, here)
        except Refusal as refusal:
            message = f"what {remote} has is not used: {refusal}"
            self._journal.bypass(f"remote: {refusal.reason}", message, id_)
        except RemoteError as error:
            self._fail(str(error), id_)
        except Exception as error:  # whatever it is; what it says may not be for everybody
            self._fail(f"{remote} cannot be used ({type(error).__name__})", id_)
        return None

    def _fail(self, message: str, id_: str) -> None:
        self._failed = True
        self._journal.bypass("the remote failed", f"{message}. It is not asked again", id_)
