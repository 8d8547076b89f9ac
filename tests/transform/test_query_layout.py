"""Without gradients queries lie with positions first where nobody can tell, and no result of attention is copied."""

import attention_layers as layers
import pytest
import torch
from attention_layers import SIZE, WIDTH, Layer
from flash_kernels import play_flash_attention
from stored_programs import compile_anew
from torch.nn.functional import scaled_dot_product_attention

from fusioncache.accelerators.steps.query_layout import QUERIES


@pytest.fixture(autouse=True)
def _eager_regions(eager_regions):
    """What Thunder alone runs is to have the same bits."""


@pytest.fixture(autouse=True)
def _kernels():
    """Plays flash attention."""
    with pytest.MonkeyPatch.context() as patch, play_flash_attention(patch):
        yield


MOVES = ("Layer", "Copied", "Scaled", "Frozen")
"""What lies with positions first, and then is copied nowhere."""
STAYS = (
    *(
        "Normalized",
        "KeyNormalized",
        "Largest",
        "QueryReturned",
        "QueryUsedTwice",
        "QueryIsKey",
        "ResultReturned",
        "JoinedReturned",
    ),
    *("JoinedAdded", "HeadsKept", "HeadsSplit", "SwappedOtherwise", "Writing", "NotTurned", "RowsLater", "Given"),
)
"""What stays as it lies: each differs from a layer by one thing."""


@torch.no_grad()
def compute(call, length=6):
    torch.manual_seed(length)
    outputs = call(torch.randn(2, length, WIDTH))
    return outputs if isinstance(outputs, tuple) else (outputs,)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


@pytest.mark.parametrize("kind", MOVES)
def test_no_result_is_copied(tmp_path, kind):
    model = getattr(layers, kind)()
    compiled, transform = compile_anew(model, tmp_path / "one")
    plain, _ = compile_anew(model, tmp_path / "other", lean="thunder")
    assert_same(compute(compiled), compute(plain))
    torch.testing.assert_close(compute(compiled), compute(model))
    assert transform.stats().taken_out[QUERIES] == 1 and not transform.stats().bypasses


@torch.no_grad()
def test_layers_are_one_template_as_before(tmp_path):
    compiled, transform = compile_anew(layers.Stack(), tmp_path)
    compute(compiled)
    assert transform.stats().taken_out[QUERIES] == 2
    assert len([call for call in transform.calls() if "prims.stride_order" in str(call.template)]) == 1


@pytest.mark.parametrize("kind", STAYS)
def test_what_may_be_told_stays_as_it_lies(tmp_path, kind):
    model = getattr(layers, kind)()
    compiled, transform = compile_anew(model, tmp_path)
    torch.testing.assert_close(compute(compiled), compute(model))
    assert QUERIES not in transform.stats().taken_out


@pytest.mark.parametrize("size", [(1, WIDTH), (6, 4)], ids=["one position", "heads that are padded"])
@torch.no_grad()
def test_what_has_one_order_or_is_copied_anyway_stays(tmp_path, size):
    positions, width = size[0], min(size[1], SIZE)

    def attend(x):
        heads = linear(x).view(1, positions, -1, width).transpose(1, 2) * 2.0
        return scaled_dot_product_attention(heads, heads * 1.5, heads * 3.0).transpose(1, 2).flatten(2) @ weight

    linear, weight = torch.nn.Linear(WIDTH, WIDTH), torch.randn(WIDTH, 3)
    compiled, transform = compile_anew(attend, tmp_path)
    x = torch.randn(1, positions, WIDTH)
    torch.testing.assert_close(compiled(x), attend(x))
    assert QUERIES not in transform.stats().taken_out


def test_a_failure_leaves_the_trace_as_it_is(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no order")

    monkeypatch.setattr("fusioncache.accelerators.steps.query_layout.find_queries", fail)
    model = Layer()
    compiled, transform = compile_anew(model, tmp_path)
    with pytest.warns(RuntimeWarning, match="pass 'attention copies': a trace stays as Thunder made it"):
        results = compute(compiled)
    torch.testing.assert_close(results, compute(model))
    assert transform.stats().bypasses == {"failed: RuntimeError": 1}
