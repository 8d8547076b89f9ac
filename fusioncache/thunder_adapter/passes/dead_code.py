"""Dead code found by names, and without collecting an operation's tags for each operation that it consists of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from fusioncache.thunder_adapter.passes.leaves import leaf_types


def shorten_remove_noop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Asks once whether an operation has the tag, which can only get lost while operations are removed from it."""
    from thunder.core import symbol

    from fusioncache.thunder_adapter.api import OpTags

    tags = {OpTags.DONT_DCE}

    @wraps(original)
    def _remove_noop_subsymbols(bsym: Any) -> None:
        kept: list[Any] = []
        has_tag = True
        for each in bsym.subsymbols:
            if len(each.subsymbols) == 0 and not each.sym.is_prim:
                continue
            has_tag = has_tag and symbol.has_tags(bsym, tags)
            if not has_tag and not each.flat_proxy_outs:
                continue
            _remove_noop_subsymbols(each)
            kept.append(each)
        bsym.subsymbols = kept

    return _remove_noop_subsymbols


def shorten_remove_duplicates(original: Callable[..., Any]) -> Callable[..., Any]:
    """Copies operations one by one as they are, if none has a number for a result."""
    from thunder.core.baseutils import NumberProxyInterface

    leaf = leaf_types()

    def is_plain(output: Any) -> bool:
        if type(output) in (tuple, list):
            return len(output) > 0 and leaf.issuperset(map(type, output)) and not any(map(is_number, output))
        return type(output) in leaf and not is_number(output)

    def copy(bsym: Any) -> Any:
        return bsym.from_bsym(output=bsym.output.copy()) if type(bsym.output) is list else bsym.from_bsym()

    def is_number(value: Any) -> bool:
        return isinstance(value, NumberProxyInterface)

    @wraps(original)
    def remove_duplicate_number_proxies(bsyms: Any) -> list[Any]:
        if type(bsyms) is list and all(is_plain(each.output) for each in bsyms):
            return list(map(copy, bsyms))
        return original(bsyms)  # type: ignore[no-any-return]

    return remove_duplicate_number_proxies


def shorten_dce(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks for what is needed by name, where Thunder makes a variable of each proxy, and compares those."""
    from thunder.core import pytree, symbol, trace, transform_common, utils

    from fusioncache.thunder_adapter.api import Proxy, Variable, prims

    tags = {prims.OpTags.DONT_DCE}

    @wraps(original)
    def dce(old: Any, needed_proxies: Any = None) -> Any:
        if needed_proxies is not None and not {Variable}.issuperset(map(type, needed_proxies)):
            return original(old, needed_proxies)
        start = time.perf_counter_ns()
        producer_of = utils.producers(old)._dict
        proxies = [each for each in pytree.tree_flatten(old.output)[0] if isinstance(each, Proxy)]
        names = {each.proxy.name for each in needed_proxies or ()}.union([each.name for each in proxies])
        kept: list[Any] = []
        for bsym in reversed(old.bound_symbols):
            if symbol.has_tags(bsym, tags) or is_needed(bsym, names, producer_of):
                transform_common._remove_noop_subsymbols(bsym)
                kept.append(bsym)
                proxies += bsym.flat_proxy_args
                names.update([each.name for each in bsym.flat_proxy_args])
        if needed_proxies is not None:  # which the caller goes on with
            needed_proxies.update(map(Variable, proxies))
        new = trace.from_trace(old)
        new.bound_symbols = transform_common.remove_duplicate_number_proxies(kept[::-1])
        took = (time.perf_counter_ns() - start) // 1000000
        new.set_provenance(trace.TraceProvenance(f"Dead Code Elimination (took {took} milliseconds)"))
        return new

    def is_needed(bsym: Any, names: set[str], producer_of: Mapping[str, Any]) -> bool:
        for out in bsym.flat_proxy_outs:
            if out.name in names:
                producer = producer_of[out.name]
                if producer is bsym or producer == bsym:
                    return True
        return False

    return dce
