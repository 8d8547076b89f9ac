"""Residual chains summed in one launch: the conditions for it, equal bits, and folds where it is not possible."""

import sys
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from drawn_regions import draw_residual
from repository import run_code

from fusioncache.backends.eager import Eager
from fusioncache.backends.nvfuser import backend as nvfuser
from fusioncache.backends.nvfuser.backend import LEAST_TERM_BYTES, MOST_FOLDED_TERMS, NvFuser, takes_one_launch
from fusioncache.cache.backend_executables import BackendExecutables
from fusioncache.cache.cache import Cache
from fusioncache.cache.call import Fallback, TemplateCall
from fusioncache.ir import Template
from fusioncache.observe.record.ledger import Ledger
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.plan import Plan

ROWS = LEAST_TERM_BYTES // 2 // 1024
LONG = MOST_FOLDED_TERMS + 1
HALF, FULL = torch.bfloat16, torch.float32


def describe(dtype: torch.dtype = HALF, shape: tuple[int, ...] = (ROWS, 1024), cuda: bool = True, step: int = 1) -> Any:
    """Returns a fake tensor with the attributes that are read."""
    tensor = torch.empty(*shape[:-1], step * shape[-1], dtype=dtype, device="meta")[..., ::step]
    asked = ("is_contiguous", "numel", "element_size", "dtype", "shape")
    return SimpleNamespace(is_cuda=cuda, **{name: getattr(tensor, name) for name in asked})


def takes(fold: str, terms: int = LONG, total: str = "float32", head: Any = None, **term: Any) -> bool:
    return takes_one_launch(fold, total, head or describe(**term), [describe(**term)] * terms)


def test_long_chains_of_large_terms_are_summed_in_one_launch():
    assert takes("auto") and takes("auto", terms=1000) and takes("auto", total="float32_")
    assert not takes("auto", terms=LONG - 1) and not takes("auto", shape=(ROWS - 1, 1024))
    assert takes("auto", shape=(ROWS - 1, 1024), dtype=FULL)
    assert takes("triton", terms=1, shape=(3,)) and not takes("nvfuser", terms=1000)


@pytest.mark.parametrize("fold", ["auto", "triton"])
def test_what_the_kernel_cannot_read_is_folded(fold):
    assert takes(fold, head=describe(FULL)) and takes(fold, head=describe(torch.float16))
    assert not any(takes(fold, total=dtype) for dtype in ("float64", "bfloat16", "complex64", "int64"))
    unread = [{"dtype": dtype} for dtype in (torch.float64, torch.complex64, torch.int32)]
    for how in ({"cuda": False}, {"step": 2}, {"shape": (0, 1024)}, *unread):
        assert not takes(fold, **how)
        assert not takes(fold, head=describe(**how))
    assert not takes(fold, head=describe(shape=(1024, ROWS)))
    assert not takes(fold, head=2.0)
    assert not takes_one_launch("triton", "float32", describe(), [describe()] * LONG + [describe(FULL)])


def folded(sum_chain: Any) -> tuple[Any, Ledger]:
    """Returns the function of a template call that sums nine terms, and its ledger."""
    canonical = canonicalize(draw_residual(9))
    template = Template(canonical.graph, make_key(canonical.graph, {}), "named")
    backend, cache = Eager(), Cache(record=False, store=False)
    backend.sum_chain = sum_chain  # type: ignore[method-assign]
    ledger = cache.ledger
    call = TemplateCall(template, BackendExecutables(backend, cache, ledger))
    call.allow(canonical.binding.arities, Plan.FOLD, Fallback(lambda *_: pytest.fail("fell back"), (), ()))
    assert canonical.binding.arguments == tuple(range(10))
    return call.target.function, ledger


def inputs() -> list[torch.Tensor]:
    """Returns a head and nine terms."""
    return [torch.randn(2, 3) * 10**6 for _ in range(10)]


def expected(args: list[torch.Tensor]) -> torch.Tensor:
    return torch.tanh(reduce(torch.add, args))


def test_the_backends_own_way_is_asked_once_for_a_layout_and_folds_are_compiled_all_the_same():
    asked, added = [], []

    def adder(dtype: str, head: Any, terms: Any, compiled: Any) -> Any:
        asked.append((dtype, len(terms)))
        compiled(0.25)
        return lambda head, terms: added.append(1) if len(added) % 2 else (added.append(0), sum(terms, head))[1]

    call, ledger = folded(adder)
    for _ in range(4):
        args = inputs()
        assert torch.equal(call(*args)[0], expected(args))
    assert asked == [("float32", 9)]
    assert added == [0, 1, 0, 1, 0]  # and one trial run; None leaves the terms to the folds
    assert ledger.stats().compiles == 4  # its own, folds of 8 and of 1 term, and the core
    assert ledger.stats().compile_seconds >= 0.25 and not ledger.stats().bypasses


def add_twice(*_: Any) -> Any:
    """Returns a function that sums a chain, and fails from the third call on."""
    left = [1, 1]
    return lambda head, terms: sum(terms, head) if left.pop() else None


@pytest.mark.parametrize(
    ("sum_chain", "error"),
    [
        (partial(NvFuser.sum_chain, SimpleNamespace(fold="auto")), "ModuleNotFoundError"),  # without Triton
        (add_twice, "IndexError"),
    ],
)
def test_what_fails_is_counted_warned_about_once_and_not_tried_again(sum_chain, error, monkeypatch):
    monkeypatch.delattr("fusioncache.backends.nvfuser.pointer_table", raising=False)
    monkeypatch.setitem(sys.modules, "fusioncache.backends.nvfuser.pointer_table", None)
    monkeypatch.setattr(nvfuser, "takes_one_launch", lambda *_: True)
    call, ledger = folded(sum_chain)
    args = inputs()
    with pytest.warns(RuntimeWarning, match="summed by folds, as one launch failed for named") as warned:
        for _ in range(4):
            assert torch.equal(call(*args)[0], expected(args))
    assert len(warned) == 1
    assert ledger.stats().bypasses == {f"one launch failed: {error}": 1}


FULL_MEMORY = mock.Mock(side_effect=torch.OutOfMemoryError("full"))


@pytest.mark.parametrize("sum_chain", [FULL_MEMORY, lambda *_: FULL_MEMORY], ids=["at once", "later"])
def test_out_of_memory_for_the_table_is_not_hidden(sum_chain):
    call, ledger = folded(sum_chain)
    with pytest.raises(torch.OutOfMemoryError):
        call(*inputs())
    assert not ledger.stats().bypasses


POINTER_TABLES = """
import itertools, sys
import torch
from benchmarks.common.tensors import same_bits
from chain_sums import add_in_turn
from fusioncache.backends.nvfuser import pointer_table as kernel

device = sys.argv[1]
if device == "cpu":  # Triton's interpreter hands Python's range arrays of one element, which numpy 2.4 takes no more
    number = lambda value: int(value.handle.data.item()) if hasattr(value, "handle") else int(value)
    kernel.range = lambda *bounds: range(*map(number, bounds))
torch.manual_seed(0)
float32, bfloat16, float16 = torch.float32, torch.bfloat16, torch.float16
for elements, count in itertools.product((1, 5001), (1, 9)):
    for head, dtype in ((float32, float32), (bfloat16, bfloat16), (float32, bfloat16), (bfloat16, float16)):
        memory = torch.randn(count + 1, elements, device=device)
        memory[:, 0] = -0.0
        args = [row.to(dtype if place else head).clone() for place, row in enumerate(memory)]
        found = kernel.launch(args[0], args[1:])
        assert same_bits(found, add_in_turn(args)), (elements, count, head, dtype)
assert same_bits(kernel.launch(args[0], args[1:], 2048, 8), add_in_turn(args))
assert kernel.add(args[0][1:], [term[1:] for term in args[1:]]) is None
print("the same")
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_pointer_table_adds_any_number_of_terms_of_any_size(device):
    pytest.importorskip("triton")
    interpreter = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    assert run_code(POINTER_TABLES, device, **interpreter) == "the same\n"
