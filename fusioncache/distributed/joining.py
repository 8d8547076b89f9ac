"""Joins a gather with the column layers behind it, and a row layer with the scatter behind it.

This changes the trace before Thunder differentiates it: there each exchange and each layer is one symbol, and gradients
follow from those of the joined symbols. What is not joined has a reason, which depends on the trace alone and so is the
same for all ranks.

Either all ranks join or none does: a rank that does not would let the others wait for ever. So each rank writes its
obstacle into the job's store, and all ranks take the first one. If there is none, they try both operations with small
numbers whose sums are exact, and tell each other the result.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from fusioncache.distributed import joined_products
from fusioncache.distributed.cuts import operation_name
from fusioncache.distributed.joined_products import Products, multiply_gathered, scatter_product
from fusioncache.distributed.sharing import find_time_limits

_LINEAR = ("torch.linear", "prims.linear")


@dataclass(frozen=True, slots=True)
class Joined:
    """What is computed at once.

    Attributes:
        exchange: the bound symbol of a gather or a scatter.
        layers: those of the linear layers that take what was gathered, or of the one that gives what is scattered.
    """

    exchange: Any
    layers: tuple[Any, ...]


def join_products(trace: Any, report_left: Callable[[str], None]) -> Any:
    """Returns a trace in which exchanges and the products beside them are one symbol; the same one if there is none.

    Args:
        trace: what ranks do, in which layers are cut.
        report_left: is told why an exchange of a column or a row layer stays by itself.
    """
    from fusioncache.thunder_adapter.api import TraceProvenance, from_trace, tracectx

    uses = _Uses(trace)
    found = [joined for symbol in trace.bound_symbols if (joined := uses.find_joined(symbol, report_left))]
    if not found:
        return trace
    new = from_trace(trace)
    walk = _Joiner(new, found)
    with tracectx(new):
        for symbol in trace.bound_symbols:
            new.set_current_source_location(symbol.source_filename, symbol.source_positions)
            walk.visit(symbol)
    new.set_current_source_location(None, None)
    new.set_provenance(TraceProvenance("Products joined with exchanges by fusioncache"))
    return new


class _Uses:
    """What of a trace may be joined.

    Args:
        trace: it.
    """

    def __init__(self, trace: Any):
        self._takers: dict[str, list[Any]] = defaultdict(list)
        self._makers: dict[str, tuple[int, Any]] = {}
        self._places: dict[int, int] = {}
        for place, symbol in enumerate(trace.bound_symbols):
            self._places[id(symbol)] = place
            for name in dict.fromkeys(value.name for value in symbol.flat_proxy_args):
                self._takers[name].append(symbol)
            for value in symbol.flat_proxy_outs:
                self._makers.setdefault(value.name, (place, symbol))

    def find_joined(self, symbol: Any, report_left: Callable[[str], None]) -> Joined | None:
        """Returns what is computed together with an exchange; None if this is none, or it stays as it is."""
        name = operation_name(symbol)
        if name == "fusioncache.gather_for_parts":
            layers = tuple(self._takers[symbol.output.name])
            reason = next(filter(None, (self._explain_alone(layer, symbol) for layer in layers)), "")
            what = "a gather in front of column layers"
        elif name == "fusioncache.sum_into_parts" and self._is_of_layer(symbol):
            _, layer = self._makers[symbol.args[0].name]
            layers, what = (layer,), "a scatter behind a row layer"
            reason = _explain_unlike(layer)
            if layer.args[2] is not None or len(self._takers[layer.output.name]) > 1:
                reason = "what is scattered is used otherwise as well"
        else:
            return None
        if symbol.args[2] >= symbol.args[0].ndim - 1:
            reason = "it is along the features"
        if reason:
            report_left(f"{what} is not joined: {reason}")
        return None if reason or not layers else Joined(symbol, layers)

    def _is_of_layer(self, scatter: Any) -> bool:
        """Tells whether a linear layer gives what is scattered. Else it is what an embedding found."""
        maker = self._makers.get(scatter.args[0].name)
        return maker is not None and operation_name(maker[1]) in _LINEAR

    def _explain_alone(self, layer: Any, gather: Any) -> str:
        """Returns why something that takes what was gathered keeps that from being joined."""
        if operation_name(layer) not in _LINEAR:
            return f"{operation_name(layer).rpartition('.')[2]} takes what was gathered as well"
        weight = layer.args[1]
        made, _ = self._makers.get(weight.name, (-1, None))
        if layer.args[0].name != gather.output.name or made > self._places[id(gather)]:
            return "a weight is computed only behind it"
        return _explain_unlike(layer)


def _explain_unlike(layer: Any) -> str:
    """Returns what else a linear layer does than to multiply by its weight."""
    (taken, weight), inner = layer.args[:2], [each for each in layer.subsymbols if each.flat_proxy_outs]
    direct = operation_name(layer) == "prims.linear" or (
        [operation_name(each) for each in inner] == ["prims.linear"]
        and [each.name for each in inner[0].args[:2]] == [taken.name, weight.name]
    )
    if not direct or weight.ndim != 2 or weight.dtype != taken.dtype:
        return "a layer converts what it takes"
    return ""


class _Joiner:
    """Goes through a trace and writes the new one."""

    def __init__(self, trace: Any, found: Sequence[Joined]):
        self._trace = trace
        self._now: dict[Any, Any] = {}
        self._gathers = {id(joined.exchange): joined for joined in found if _gathers(joined)}
        self._scatters = {id(joined.exchange): joined for joined in found if not _gathers(joined)}
        self._behind = {id(layer) for joined in self._gathers.values() for layer in joined.layers}
        self._before = {id(layer) for joined in self._scatters.values() for layer in joined.layers}

    def visit(self, symbol: Any) -> None:
        """Writes what is done in the place of a bound symbol."""
        if (joined := self._gathers.get(id(symbol))) is not None:
            self._gather(joined)
        elif (joined := self._scatters.get(id(symbol))) is not None:
            self._scatter(joined)
        elif id(symbol) in self._behind:
            self._add_bias(symbol)
        elif id(symbol) not in self._before:
            self._trace.scopes[-1].append(symbol.from_bsym_swap_proxies(self._now))

    def _gather(self, joined: Joined) -> None:
        rows, group, dim = joined.exchange.args
        weights = [self._find(layer.args[1]) for layer in joined.layers]
        products = multiply_gathered()(self._find(rows), weights, group, dim)
        for layer, product in zip(joined.layers, products, strict=True):
            self._put(layer.output, product)

    def _add_bias(self, layer: Any) -> None:
        from fusioncache.thunder_adapter.api import ltorch

        bias = layer.args[2]
        if bias is not None:
            self._put(layer.output, ltorch.add(self._find(layer.output), self._find(bias)))

    def _scatter(self, joined: Joined) -> None:
        (layer,), (_, group, dim) = joined.layers, joined.exchange.args
        features, weight = (self._find(each) for each in layer.args[:2])
        self._put(joined.exchange.output, scatter_product()(features, weight, group, dim))

    def _find(self, value: Any) -> Any:
        from fusioncache.thunder_adapter.api import variableify

        return self._now.get(variableify(value), value)

    def _put(self, value: Any, now: Any) -> None:
        from fusioncache.thunder_adapter.api import variableify

        # Such as that it was made where no gradient is wanted.
        now.tags.update(value.tags)
        self._now[variableify(value)] = now


def _gathers(joined: Joined) -> bool:
    return operation_name(joined.exchange) == "fusioncache.gather_for_parts"


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
