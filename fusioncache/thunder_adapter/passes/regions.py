"""What a region takes and gives, found without comparing each of its operations with all others.

An operation that is equal to another one has the same results. So it is looked for among those that have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def shorten_region(original: Callable[..., Any]) -> Callable[..., Any]:
    """Finds inputs and outputs by name, with a question for each operation that costs the same for any region."""
    from thunder.core.utils import OrderedSet
    from thunder.executors import utils

    from fusioncache.thunder_adapter.api import Proxy, Variable

    @wraps(original)
    def __init__(self: Any, producers: Any, consumers: Any, bound_symbols: Any) -> None:
        self.bound_symbols = bound_symbols
        is_inside = _make_membership(bound_symbols)
        produced: dict[str, Any] = {}
        consumed: dict[str, Any] = {}
        for bsym in bound_symbols:
            for each in bsym.flat_outs:
                if isinstance(each, Proxy) and is_inside(producers[each]):
                    produced.setdefault(each.name, each)
            if bsym.sym.id not in utils.comment_symbols:
                for each in bsym.flat_args:
                    if isinstance(each, Proxy):
                        consumed.setdefault(each.name, each)
        inputs = [Variable(each) for each in consumed.values() if not is_inside(producers[each])]
        outputs = [
            Variable(each)
            for each in produced.values()
            if not all(is_inside(consumer) for consumer in consumers.get(each, ()))
        ]
        order = utils.order_proxies(bound_symbols)
        self.inputs = OrderedSet(sorted(inputs, key=lambda each: order[each.proxy.name]))
        self.outputs = OrderedSet(sorted(outputs, key=lambda each: order[each.proxy.name]))

    return __init__


def _make_membership(bound_symbols: Iterable[Any]) -> Callable[[Any], bool]:
    """Makes a function that tells whether an operation is, or is equal to, one of these."""
    by_results: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    for each in bound_symbols:
        by_results[_name_results(each)].append(each)
    return lambda bsym: bsym in by_results.get(_name_results(bsym), ())


def _name_results(bsym: Any) -> tuple[str, ...]:
    return tuple([each.name for each in bsym.flat_proxy_outs])
