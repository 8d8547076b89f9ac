"""How the values of a trace are cut, and what ranks exchange of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fusioncache.distributed.cuts import Cut, take_part
from fusioncache.distributed.rank_symbols import rank_symbol


class CutValues:
    """What is known of a trace's values, while it is gone through. They go by their names in the whole trace.

    Args:
        group: the process group whose ranks share the model.
        cuts: of the parameters that are cut.
        of_rows: whether row layers leave the residual stream cut along its sequence.
    """

    def __init__(self, group: Any, cuts: Mapping[str, Cut], *, of_rows: bool):
        self.group, self.ranks = group, int(group.size())
        self.of_rows = of_rows
        self._cuts = dict(cuts)
        self._now: dict[str, Any] = {}
        self._trained: set[str] = set()
        self._entered: dict[tuple[str, str, int], Any] = {}

    def cut_of(self, value: Any) -> Cut | None:
        """Returns how a value is cut; None if it is whole, or no tensor."""
        return self._cuts.get(getattr(value, "name", ""))

    def now(self, value: Any) -> Any:
        """Returns what stands for a value in the new trace: a part of it, where it is cut."""
        return self._now.get(getattr(value, "name", ""), value)

    def give(self, value: Any, new: Any, cut: Cut | None) -> None:
        """Notes what stands for a value in the new trace.

        Raises:
            AssertionError: if it has another shape than the part that it should be. This is an error of ours.
        """
        expected = tuple(value.shape) if cut is None else take_part(value.shape, cut.dim, self.ranks)
        assert tuple(new.shape) == expected, f"{value.name}: {tuple(new.shape)} is not {expected}"
        # Such as that it was made where no gradient is wanted.
        new.tags.update(value.tags)
        self._now[value.name] = new
        if cut is not None:
            self._cuts[value.name] = cut

    def compute(self, symbol: Any, now: Mapping[str, Any], cut: Cut | None) -> bool:
        """Does what a bound symbol does, with other values; tells whether it gave what it should.

        Args:
            symbol: gives one tensor.
            now: what stands for each value that it takes, by name.
            cut: how its result is cut.
        """
        from fusioncache.thunder_adapter.api import get_tracectx, tree_map

        (given,) = symbol.flat_proxy_outs
        args, kwargs = tree_map(lambda value: now.get(getattr(value, "name", ""), value), (symbol.args, symbol.kwargs))
        trace = get_tracectx()
        scope: list[Any] = []
        expected = tuple(given.shape) if cut is None else take_part(given.shape, cut.dim, self.ranks)
        depth = len(trace.scopes)
        trace.push_scope(scope)
        try:
            new = symbol.sym(*args, **kwargs)
        except (RuntimeError, ValueError, NotImplementedError):  # it names sizes of the whole
            new = None
        finally:
            del trace.scopes[depth:]  # what raised has left the scopes of its parts
        if new is None or tuple(new.shape) != expected:
            return False
        trace.scopes[-1].extend(scope)
        self.give(given, new, cut)
        return True

    def train(self, taken: Iterable[Any], given: Iterable[Any]) -> None:
        """Notes that what was made of these has a gradient if one of them has."""
        if any(value.name in self._trained for value in taken):
            self._trained.update(value.name for value in given)

    def starts(self, inputs: Iterable[Any]) -> None:
        """Notes which inputs of the trace have gradients, and takes parts in the place of those that are cut."""
        from fusioncache.thunder_adapter.api import TraceCtx, tracectx

        for value in inputs:
            if getattr(value, "requires_grad", False):
                self._trained.add(value.name)
            cut = self.cut_of(value)
            if cut is not None:
                # A name is taken once in a trace: here one proxy takes the place of another.
                with tracectx(TraceCtx()):
                    self._now[value.name] = value.replace(shape=take_part(value.shape, cut.dim, self.ranks))

    def enter(self, value: Any) -> Any:
        """Returns a whole value for something that computes a part: ranks add up its gradient."""
        if value.name not in self._trained:
            return self.now(value)
        return self._exchange("copy_to_ranks", value, 0)

    def own_part(self, value: Any, dim: int) -> Any:
        """Returns this rank's part of a whole value."""
        return self._exchange("take_own_part", value, dim)

    def gather(self, value: Any, *, partial: bool) -> Any:
        """Returns all of a value that is cut.

        Args:
            value: it.
            partial: whether it is for something that computes a part, so that ranks have summands of its gradient.
        """
        cut = self.cut_of(value)
        assert cut is not None
        return self._exchange("gather_for_parts" if partial else "gather_parts", value, cut.dim)

    def _exchange(self, name: str, value: Any, dim: int) -> Any:
        key = name, value.name, dim
        if key not in self._entered:
            self._entered[key] = rank_symbol(name)(self.now(value), self.group, dim)
        return self._entered[key]
