"""What passes ask for, asked with and without shortcuts: the same answers and the same errors."""

import dataclasses
import inspect
import re
from collections import OrderedDict, namedtuple
from functools import partial, wraps
from itertools import product

import pytest
import torch
from thunder.core import codeutils, devices, dtypes, proxies, pytree
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, tracectx
from torch.fx.immutable_collections import immutable_list

from fusioncache.thunder_adapter.shortcuts.symbols import (
    shorten_flatten,
    shorten_infer_properties,
    shorten_normalize,
    shorten_to_printable,
    shorten_with_dataclass,
)


@dataclasses.dataclass
class Pair:
    left: object
    right: object


Named = namedtuple("Named", "b a")


def outcome(function, *args, **kwargs):
    """What comes of a call: a result, or the type and text of an error."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


with tracectx(TraceCtx()):
    TENSOR = proxies.TensorProxy(
        "t", shape=(2,), device=devices.cpu, dtype=dtypes.float32, requires_grad=False, tags=set()
    )
    NUMBER = proxies.IntegerProxy("n", value=3)
    TUPLE = proxies.TupleProxy((1, 2), name="tuple")
    LIST = proxies.CollectionProxy([TENSOR], name="collection")
LEAVES = [TENSOR, NUMBER, TUPLE, LIST, 1, 1.5, True, "a", None, 1j, ..., dtypes.float32, dtypes.bool8, devices.cpu]
LEAVES += [torch.float32, torch.device("cpu"), int, slice(1, 2), torch.Size([2, 3]), immutable_list([1, TENSOR])]
LEAVES += [Named(2, 1), Pair(TENSOR, (1, 2)), object(), dtypes.uint8, dtypes.complex64, {1, 2}]
LEAVES += [proxies.Variable(TENSOR)]
TREES = [
    *LEAVES,
    *((leaf, {"b": [leaf, None], "a": {}}) for leaf in LEAVES),
    {2: TENSOR, "a": 1, None: 3},
    OrderedDict(b=1, a=TENSOR),
    ((), [], {}),
]


@pytest.mark.parametrize(
    ("original", "shorten", "options"),
    [
        *(
            (pytree.tree_flatten, shorten_flatten, options)
            for options in ({}, {"namespace": ""}, {"namespace": "thunder"})
        ),
        (pytree.tree_flatten_with_dataclass, shorten_with_dataclass, {}),
    ],
)
def test_trees_are_flattened_alike(original, shorten, options):
    original = inspect.unwrap(original)
    for tree in TREES:
        assert_same_flat(outcome(original, tree, **options), outcome(shorten(original), tree, **options))


def assert_same_flat(slow, fast):
    assert type(slow) is type(fast) and len(slow) == len(fast)
    if isinstance(slow[0], list):
        assert all(one is other for one, other in zip(slow[0], fast[0], strict=True))
        assert slow[1] == fast[1] and repr(slow[1]) == repr(fast[1]) and slow[1].namespace == fast[1].namespace
    else:
        assert slow == fast


@wraps(lambda a, *, b, c=3: None)
def wrapping(*args, **kwargs):
    pass


def lying(*args):
    pass


lying.__signature__ = inspect.signature(wrapping)


class Callable:
    def __call__(self, a, b=1):
        pass


METAS = [
    lambda a, b=2: None,
    lambda a, *, b, c=3: None,
    lambda a, *rest, b=None: None,
    lambda a, **names: None,
    lambda a, /, b=1: None,
    *(wrapping, lying, Callable(), partial(Callable(), 1), int.bit_length),
]
ARGUMENTS = [(), (1,), (1, 2), (1, 2, 3)]
NAMES = [{}, {"a": 1}, {"b": 2}, {"b": 2, "a": 1}, {"c": 1, "b": 2}, {"d": 1}]


@pytest.mark.parametrize("meta", METAS)
def test_arguments_are_bound_alike(meta):
    symbol, original = Symbol("name", meta), vars(Symbol)["normalize"]
    fast_normalize = shorten_normalize(original)
    for args, names in product(ARGUMENTS, NAMES):
        given = dict(names)
        slow, fast = (outcome(normalize, symbol, *args, **given) for normalize in (original, fast_normalize))
        assert slow == fast and given == names, (args, names)
        if isinstance(slow[1], dict):
            assert list(slow[1]) == list(fast[1]) and type(slow[0]) is type(fast[0]), (args, names)


def test_defaults_that_are_changed_are_seen():
    def meta(a, b=1, *, c=2):
        pass

    fast = shorten_normalize(vars(Symbol)["normalize"])
    assert fast(Symbol("name", meta), 0) == ((0, 1), {"c": 2})
    meta.__defaults__, meta.__kwdefaults__["c"] = (5,), 6
    assert fast(Symbol("name", meta), 0) == ((0, 5), {"c": 6})


def describe_printable(function, tree):
    """What it makes of a tree, and what it notes meanwhile."""
    imports, objects, trace = {}, {}, TraceCtx()
    printable = outcome(function, trace, tree, import_ctx=imports, object_ctx=objects)
    if isinstance(printable, codeutils.ContextObject):
        printable = printable.name, printable.obj
    found = type(printable), printable, list(imports), list(objects), list(trace.names)
    return re.sub(" at 0x[0-9a-f]+", "", repr(found))


def test_things_are_made_printable_alike():
    original = codeutils.to_printable
    fast = shorten_to_printable(original)
    for tree in TREES:
        assert describe_printable(fast, tree) == describe_printable(original, tree)


SHAPES = [(), (2, 3), [4], (0,), (-1,), (True, 2), (2.5,), None, 3, (NUMBER,)]
WHAT_TENSORS_ARE = [
    *({"shape": shape} for shape in SHAPES),
    *({"dtype": dtype} for dtype in sorted(dtypes.all_dtypes, key=str)),
    *({"dtype": dtype} for dtype in (None, float, int, torch.float32, "float32", dtypes.uint64)),
    *(
        {"requires_grad": flag, "dtype": dtype}
        for flag in (True, False, None)
        for dtype in (dtypes.int64, dtypes.float64)
    ),
    *({"grad": TENSOR, "requires_grad": flag} for flag in (True, False)),
    *({"device": device} for device in (None, "cpu", torch.device("cpu"))),
    *({"distparallel_type": kind} for kind in (*proxies.DistParallelType, None, "none")),
    {"thunder_fsdp_padding_size": 2},
    {"like": TENSOR},
    {"like": TENSOR, "shape": None, "device": None, "dtype": None, "requires_grad": None},
]


def test_tensors_are_alike():
    original = proxies._infer_tensor_properties
    usual = {"shape": (2, 3), "device": devices.cpu, "dtype": dtypes.float32, "requires_grad": True}
    for changes in WHAT_TENSORS_ARE:
        slow, fast = (outcome(each, **usual | changes) for each in (original, shorten_infer_properties(original)))
        assert repr(slow) == repr(fast) and list(map(type, slow)) == list(map(type, fast)), changes
