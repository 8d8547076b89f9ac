"""Who produces and who consumes a proxy, without an exception for each that is not yet known."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def shorten_producers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compares names, where Thunder makes variables of the proxies and compares those."""
    from thunder.core.utils import ProxyDict

    from fusioncache.thunder_adapter.api import PrimIDs

    skip = (PrimIDs.COMMENT, PrimIDs.PRINT, PrimIDs.RETURN)

    @wraps(original)
    def producers(trace_or_bsyms: Any, *, _map_to_numbers: bool = False) -> Any:
        found = ProxyDict()
        by_name = found._dict
        for index, bsym in enumerate(_bound_symbols(trace_or_bsyms)):
            if bsym.sym.id in skip:
                continue
            for out in bsym.flat_proxy_outs:
                name = out.name
                if by_name.get(name) is None and name not in [each.name for each in bsym.flat_proxy_args]:
                    by_name[name] = index if _map_to_numbers else bsym
        return found

    return producers


def shorten_consumers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Adds to lists by name at once."""
    from thunder.core.utils import ProxyDict

    from fusioncache.thunder_adapter.api import PrimIDs

    skip = (PrimIDs.COMMENT, PrimIDs.UNPACK_TRIVIAL)

    @wraps(original)
    def consumers(trace_or_bsyms: Any, *, _map_to_numbers: bool = False) -> Any:
        found = ProxyDict()
        by_name = found._dict
        for index, bsym in enumerate(_bound_symbols(trace_or_bsyms)):
            if bsym.sym.id in skip:
                continue
            for each in bsym.flat_proxy_args:
                by_name.setdefault(each.name, []).append(index if _map_to_numbers else bsym)
        return found

    return consumers


def _bound_symbols(trace_or_bsyms: Any) -> Any:
    return trace_or_bsyms if isinstance(trace_or_bsyms, list) else trace_or_bsyms.bound_symbols


def shorten_get(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks a proxy up by its name, where Thunder raises an exception and catches it if there is none."""
    from fusioncache.thunder_adapter.api import Proxy

    @wraps(original)
    def get(self: Any, key: Any, default: Any) -> Any:
        return self._dict.get(key.name, default) if isinstance(key, Proxy) else original(self, key, default)

    return get


def shorten_getitem(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks a proxy up by its name."""
    from fusioncache.thunder_adapter.api import Proxy

    @wraps(original)
    def __getitem__(self: Any, key: Any) -> Any:
        return self._dict[key.name] if isinstance(key, Proxy) else original(self, key)

    return __getitem__


def shorten_contains(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks a proxy up by its name."""
    from fusioncache.thunder_adapter.api import Proxy

    @wraps(original)
    def __contains__(self: Any, key: Any) -> bool:
        return key.name in self._dict if isinstance(key, Proxy) else original(self, key)

    return __contains__
