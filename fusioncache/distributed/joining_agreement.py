"""Ranks agree on whether products are joined with what they exchange: all of them, or none.

Half of them joined would wait for the others for ever. So each rank tells the others through the job's store what keeps
it from that, and all take the first reason that there is. Where there is none they try both operations, with small
numbers whose sums are exact, and tell each other how that went.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch

from fusioncache.distributed import joined_products
from fusioncache.distributed.groups import find_time_limits
from fusioncache.distributed.joined_products import Products

logger = logging.getLogger("fusioncache")

_SIZE = 64
"""Features in a trial."""


class Talk:
    """What the ranks of a group tell each other of one model, through a store. Who only tells waits for nobody.

    Args:
        store: of the job.
        name: of the group, which no other one has.
        rank: this one's place among them.
        ranks: how many there are.
        patience: how long one waits for the others.
    """

    def __init__(self, store: Any, name: str, rank: int, ranks: int, patience: timedelta):
        self._store, self._rank, self._ranks, self._patience = store, rank, ranks, patience
        self._rounds = 0
        # Each rank has as many models on the group as any other, in the same order.
        self._place = f"{name}/{store.add(f'{name}/models of {rank}', 1)}"

    def tell(self, words: str) -> None:
        """Tells the others something."""
        self._rounds += 1
        self._store.set(self._key(self._rank), words)

    def hear(self) -> list[str]:
        """Waits for what all ranks told in this round, this one as well; in order of ranks.

        Raises:
            RuntimeError: if one of them tells nothing in time.
        """
        keys = [self._key(rank) for rank in range(self._ranks)]
        try:
            self._store.wait(keys, self._patience)
        except RuntimeError as error:
            raise RuntimeError(
                "a rank does not say whether it joins products: all ranks have to share models in the same order"
            ) from error
        return [bytes(self._store.get(key)).decode() for key in keys]

    def agree(self, reason: str) -> str:
        """Tells a reason, or that there is none, and returns the first one that a rank has."""
        self.tell(reason)
        return _first(self.hear())

    def _key(self, rank: int) -> str:
        return f"{self._place}/{self._rounds}/{rank}"


def agree_on_joining(group: Any, device: torch.device, *, wanted: bool) -> str:
    """Returns why the ranks of a group do not join products; nothing if all of them do. All that ask get the same.

    Args:
        group: the process group, all ranks of which call this.
        device: where this rank's tensors are.
        wanted: whether this rank asks for it. If not, it only tells the others so, and waits for none.

    Raises:
        RuntimeError: if a rank does not answer within the group's time limit.
    """
    from torch.distributed import get_backend

    if group.size() < 2 or get_backend(group) == "fake":
        return "there are no other ranks"
    talk = _open_talk(group)
    if not wanted:
        talk.tell(json.dumps(["a rank does not ask for it", ""]))
        return "a rank does not ask for it"
    products = joined_products.products_of(device)
    talk.tell(json.dumps(_introduce(products, group, device)))
    reasons, places = zip(*(json.loads(words) for words in talk.hear()), strict=True)
    reason = _first(reasons)
    if reason or products is None:
        return reason
    reason = talk.agree(_explain_failure(lambda: products.find_obstacle_between(device, places)))
    trials = list_trials(products, group, device)
    while not reason and (trial := next(trials, None)):
        reason = talk.agree(_explain_failure(trial))
    return reason


def _open_talk(group: Any) -> Talk:
    from torch.distributed import get_process_group_ranks
    from torch.distributed.distributed_c10d import _get_default_store

    # Groups of other ranks may have the same name.
    name = f"fusioncache/joining/{group.group_name} of {'_'.join(map(str, get_process_group_ranks(group)))}"
    return Talk(_get_default_store(), name, group.rank(), group.size(), max(find_time_limits(group)))


def _introduce(products: Products | None, group: Any, device: torch.device) -> tuple[str, str]:
    """Returns what keeps this rank from joining by itself, and where it is."""
    if products is None:
        return f"nothing joins products on a {device.type}", ""
    reason = _explain_failure(lambda: products.find_obstacle(group, device))
    return reason, "" if reason else products.place_of(device)


def _explain_failure(find: Callable[[], str]) -> str:
    """Returns the reason that a function returns, or else what it raised."""
    try:
        return find()
    except Exception as error:  # torch raises anything here
        logger.info("products are not joined", exc_info=error)
        return f"failed: {type(error).__name__}"


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def list_trials(products: Products, group: Any, device: torch.device) -> Iterator[Callable[[], str]]:
    """Yields what ranks do together to try joined products: each returns what was wrong, or nothing.

    Who finds something wrong may not leave the others waiting in the next one, so they agree behind each.
    """
    ranks, rank, dim = group.size(), group.rank(), 1
    rows = torch.arange(2 * 4 * ranks * _SIZE, device=device).reshape(2, 4 * ranks, _SIZE) % 5 - 2.0
    matrices = [torch.arange(_SIZE * _SIZE, device=device).reshape(_SIZE, _SIZE) % each - 1.0 for each in (3, 4)]

    def gather() -> str:
        whole, given = products.gather(rows.chunk(ranks, dim)[rank], matrices, group, dim)
        expected = [rows, *(rows @ matrix for matrix in matrices)]
        return "" if all(map(torch.equal, (whole, *given), expected)) else "the result of a trial gather is wrong"

    def scatter(count: int) -> str:
        found = products.scatter([rows + rank] * count, matrices[:count], group, dim)
        terms = [(rows + one) @ matrix for one in range(ranks) for matrix in matrices[:count]]
        expected = torch.stack(terms).sum(0).chunk(ranks, dim)[rank]
        return "" if torch.equal(found, expected) else "the result of a trial reduction is wrong"

    yield lambda: products.prepare(group, device)
    yield gather
    yield lambda: scatter(1)
    yield lambda: scatter(2)
