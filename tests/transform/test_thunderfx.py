"""Models behind Dynamo: compilations at each length, the duration of a first step, and parts without Thunder."""

from itertools import pairwise, product

import pytest
import thunder
import torch
from behind_dynamo import OwnNet, compile_behind_dynamo
from fake_graphs import FakeRecorder
from models import are_same, step

from fusioncache.transform import dynamo_account

pytestmark = pytest.mark.usefixtures("eager_regions")


class ScaledNorm(torch.nn.Module):
    """A norm with attributes that are numbers: under ``dynamic=True`` Dynamo gives them as tensors."""

    def __init__(self):
        super().__init__()
        self.eps, self.scale = 1e-5, 0.3
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        scale = self.scale * self.scale
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * scale + x


def test_a_program_that_computes_with_numbers_of_a_module_is_kept_and_these_may_change(monkeypatch):
    """They are read in each call, also where code for any sizes was made with other values."""
    monkeypatch.setenv("FUSIONCACHE_STORE", "1")
    counts, model = [], ScaledNorm()
    for scales in ((0.3, -2.5), (1.5, 0.3)):
        compiled, transform = compile_behind_dynamo(model, store=None, dynamic=True)
        with torch.no_grad():
            for length, scale in product((6, 9, 5), scales):
                x, model.scale = torch.randn(2, length, 8), scale
                torch.testing.assert_close(compiled(x), model(x))
        stats = transform.stats()
        counts.append((stats.programs_made, stats.programs_loaded, stats.programs_filled))
        assert not stats.programs_refused and not stats.own_sizes and stats.general_hits > 0
    assert counts == [(2, 0, 1), (0, 2, 1)]


def test_programs_behind_dynamo_are_captured(monkeypatch):
    model, recorder = ScaledNorm(), FakeRecorder()
    plain, _ = compile_behind_dynamo(model)
    torch.manual_seed(0)
    inputs = [torch.randn(2, 6, 8) for _ in range(4)]
    expected = [step(plain, model, x) for x in inputs]
    compiled, transform = compile_behind_dynamo(model, graphs=True)
    monkeypatch.setattr(transform.graphs, "find_recorder", lambda device: recorder)
    for x, wanted in zip(inputs, expected, strict=True):
        assert are_same(step(compiled, model, x), wanted)
    assert (transform.stats().captures, dict(transform.stats().not_captured)) == (2, {})


def test_all_parts_of_a_first_call_are_measured_and_nothing_of_a_second_one():
    compiled, transform = compile_behind_dynamo(OwnNet())
    phases = []
    for _ in range(2):
        compiled(torch.ones(2, 4))
        phases.append(transform.cache.ledger.phases().to_dict())
    for name in ("dynamo", "splitting", "other_compilers", "other"):
        assert phases[0][name] == phases[1][name] > 0


def test_why_a_part_does_not_go_to_thunder_is_counted_and_if_that_fails_the_model_runs(monkeypatch):
    compiled, transform = compile_behind_dynamo(OwnNet())
    compiled(torch.ones(2, 4))
    reason = "not given to Thunder: sinc only has an automatic torch fallback in thunder"
    assert transform.stats().bypasses == {reason: 1}
    monkeypatch.setattr(dynamo_account, "write_reason", lambda text: 1 / 0)
    compiled, transform = compile_behind_dynamo(OwnNet())
    assert compiled(torch.ones(2, 4)).shape == (2, 4) and not transform.stats().bypasses


WIDTH = 12
WEIGHT = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)


def flattens(x):
    rows, length = x.shape[:2]
    y = (x.reshape(rows * length, WIDTH) @ WEIGHT).view(rows, length, WIDTH) / (rows + length)
    return y + y.mean(1, keepdim=True) + torch.arange(length)[:, None]


def picks(x):
    """Some of the rows, whose number no argument tells, as an expert does."""
    return torch.tanh(x[x[:, :, 0] > 0] @ WEIGHT) * 2


def train(compiled, length, rows, is_marked=False):
    torch.manual_seed(length)
    x = torch.randn(rows, length, WIDTH, requires_grad=True)
    if is_marked:
        torch._dynamo.mark_dynamic(x, 1)
    result = compiled(x)
    return [result, *torch.autograd.grad(result.square().sum(), [x, WEIGHT])]


def run(compiled, model, sizes, **options):
    """Returns the number of programs derived in each call; asserts the results of the calls."""
    counted = [0]
    for length, rows in sizes:
        torch.testing.assert_close(train(compiled, length, rows, **options), train(model, length, rows))
        graphs = [graph for info in compiled._backend.subgraph_infos for graph in info.thunder_compiled_fns]
        counted.append(sum(map(thunder.cache_misses, graphs)))
    return [after - before for before, after in pairwise(counted)]


def test_rows_and_lengths_may_both_vary(tmp_path):
    compiled, transform = compile_behind_dynamo(flattens, store=tmp_path, dynamic=True)
    assert run(compiled, flattens, ((24, 2), (36, 3), (25, 2), (7, 7), (9, 4))) == [1, 1, 0, 1, 0]
    # A pass compares the number of rows with the length. It does so where that length is tried as well.
    assert all("args[1][0]" in reason for reason in transform.stats().passes_repeated)
    assert len(transform.stats().passes_repeated) == 2


def test_a_marked_length_is_traced_twice_and_in_a_later_process_at_no_length(tmp_path):
    """Dynamo's first graph is not one for a constant length, and so serves all of them."""
    for lengths, made, filled in (((24, 36, 25, 50), 2, 2), ((31, 24, 70, 33), 0, 3)):
        compiled, transform = compile_behind_dynamo(flattens, store=tmp_path)
        run(compiled, flattens, [(length, 2) for length in lengths], is_marked=True)
        stats = transform.stats()
        assert (stats.programs_made, stats.programs_filled, stats.programs_loaded) == (made, filled, 4 - made - filled)


def test_a_number_of_tokens_that_no_argument_tells(tmp_path):
    """The operations before and after the choice are separate graphs."""
    compiled, transform = compile_behind_dynamo(picks, store=tmp_path)
    traced = run(compiled, picks, ((8, 2), (13, 2), (9, 2), (30, 2), (21, 2)))
    assert all(traced[:2])
    assert traced[3:] == [0, 0]
    assert not transform.stats().programs_refused
