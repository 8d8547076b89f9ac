"""What arguments and results of operations are made of: tuples, lists, dicts, and leaves of a few known types."""

from __future__ import annotations

from functools import cache


@cache
def leaf_types() -> frozenset[type]:
    """Returns types of which each instance is a leaf of Thunder's trees, and no data class."""
    from thunder.core import codeutils, proxies

    from fusioncache.thunder_adapter.api import dtypes

    more = (dtypes.unsignedinteger, dtypes.complexfloating, proxies.Variable, codeutils.ContextObject)
    return root_types().union(more) - {tuple, list, dict}


@cache
def root_types() -> frozenset[type]:
    """Returns types that Thunder flattens, whatever an instance contains: of leaves and of plain containers."""
    import torch

    from fusioncache.thunder_adapter.api import devices, dtypes

    plain = (int, float, complex, bool, str, type(None), tuple, list, dict)
    of_thunder = (dtypes.floating, dtypes.signedinteger, dtypes.bool_, devices.Device)
    return proxy_types().union(plain, of_thunder, (torch.dtype, torch.device))


@cache
def proxy_types() -> frozenset[type]:
    """Returns the types of proxies of numbers, of tensors, and of what is neither and no container."""
    from thunder.core import proxies

    of_numbers = (proxies.NumberProxy, proxies.IntegerProxy, proxies.FloatProxy, proxies.ComplexProxy)
    return frozenset((proxies.Proxy, proxies.AnyProxy, proxies.TensorProxy, proxies.FutureTensorProxy, *of_numbers))
