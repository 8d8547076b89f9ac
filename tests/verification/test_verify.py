"""Verify mode: results of each template are compared with those of each region, compiled alone, and marked."""

import copy
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import thunder
import torch
from drawn_regions import draw
from in_place_models import InPlaceExecutor, run_counters
from models import Blocks, Residual, are_same, compile_plain, compile_with, step
from stored_programs import compile_anew
from thunder.transforms.cudagraph import CUDAGraphTransform

import fusioncache
from fusioncache.backends.eager import Eager
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.cache.call import Fallback
from fusioncache.ir import Graph, TensorType
from fusioncache.store import Store
from fusioncache.store.entry import VERIFIED_SLOT
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import program_key_of
from fusioncache.template.plan import Plan, Reordered, keeps_every_bit
from fusioncache.transform import sharing
from fusioncache.verification import verifier
from fusioncache.verification.verifier import DIFFERENT, VerificationError, VerifiedTemplates, describe_difference

pytestmark = [pytest.mark.filterwarnings("ignore:fusioncache"), pytest.mark.usefixtures("eager_regions")]


@pytest.fixture(autouse=True)
def _same_numbers(monkeypatch):
    monkeypatch.delenv("FUSIONCACHE_VERIFY", raising=False)
    torch.manual_seed(0)


def compile_(model, verify: bool | str | None = True, backend: str = "eager"):
    return compile_with(model, backend, verify=verify)


def reports() -> list[Path]:
    return list(Path(os.environ["FUSIONCACHE_DIR"]).glob("mismatches/*.txt"))


@pytest.fixture
def own_calls(monkeypatch) -> Counter:
    """Returns counts of the calls of each region's own function."""
    calls: Counter = Counter()
    real = Fallback.__call__

    def counted(self, args):
        calls[id(self.call)] += 1
        return real(self, args)

    monkeypatch.setattr(Fallback, "__call__", counted)
    return calls


@pytest.fixture
def wrong(monkeypatch):
    """Returns a function that lets ``change`` alter the results of all executables of templates."""

    def use(change, backend=Eager) -> None:
        real = backend.compile

        def compile_wrongly(self, graph, args):
            run = real(self, graph, args)
            return lambda args: change(run, list(args))

        monkeypatch.setattr(backend, "compile", compile_wrongly)

    return use


def compare_steps(**options):
    """Takes two steps with verified templates, compares them with plain ones, and returns the counts."""
    model, x = Residual(2), torch.randn(10, 10)
    compiled, transform = compile_(model, **options)
    expected = step(compile_plain(model), model, x)
    for _ in range(2):
        assert are_same(step(compiled, model, x), expected)
    return transform.stats()


def test_each_template_is_compared_once_in_a_thunder_that_was_not_tried(untried, own_calls):
    stats = compare_steps(verify=None)
    assert stats.hits > 0 and stats.verified == stats.templates == own_calls.total()
    assert not reports()


def test_a_wrong_template_leaves_its_regions_in_a_thunder_that_was_not_tried(untried, own_calls, wrong, monkeypatch):
    wrong(lambda run, args: [result + 1 for result in run(args)])
    with pytest.warns(RuntimeWarning, match="computed something else than its region .* run as Thunder made them"):
        stats = compare_steps(verify=None)
    assert stats.verified == 0 and stats.bypasses[DIFFERENT] == stats.templates == len(reports())
    assert own_calls.total() == 2 * stats.regions  # at each site, in each step
    # One that cannot be compared is not captured.
    monkeypatch.setattr(verifier, "is_capturing", lambda: True)
    stats = compare_steps(verify=None)
    assert stats.verified == 0 and DIFFERENT not in stats.bypasses


def test_nothing_differs_in_training(own_calls):
    stats = compare_steps()
    assert stats.hits > 0 and not stats.bypasses
    assert sorted(own_calls.values()) == [1] * stats.regions
    assert not reports()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plan", list(Plan))
def test_nothing_differs_in_either_plan(plan, dtype, own_calls, monkeypatch):
    def function(*terms):
        x = sum(terms[1:], start=terms[0])
        return torch.tanh(x) * 2 + 1, x, torch.nn.functional.rms_norm(x, (x.shape[-1],)), x.sum()

    monkeypatch.setattr(sharing, "choose_plan", lambda *_: plan)
    compiled, _ = compile_(function)
    inputs = [torch.randn(6, 13, dtype=dtype) for _ in range(8)]
    assert are_same(list(compiled(*inputs)), list(compile_plain(function)(*inputs)))
    assert own_calls


def test_two_chains_take_their_arities_first(own_calls):
    def function(a, b, c, d, e):
        return torch.tanh(a + b + c) * torch.sin(d + e)

    compiled, transform = compile_(function)
    inputs = [torch.randn(4, 4) for _ in range(5)]
    assert torch.equal(compiled(*inputs), function(*inputs))
    assert transform.calls()[0].target.takes_arities
    assert own_calls


def count_in_place(steps=3, **options):
    """Returns results of models that write in place, without a cache and with one, and the transform."""
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager", **options)
    expected = run_counters(steps, "cpu", [InPlaceExecutor()])
    return expected, run_counters(steps, "cpu", [InPlaceExecutor()], [transform]), transform


def test_regions_that_write_in_place_run_on_copies(own_calls):
    expected, found, transform = count_in_place(verify=True)
    assert own_calls and not transform.stats().bypasses
    assert all(map(torch.equal, found, expected))


def test_numbers_and_symbolic_sizes(own_calls, tmp_path):
    jit = {"cache": "symbolic values"}
    compiled, _ = compile_anew(lambda a, b: torch.tanh(a + b) * 2, tmp_path, jit=jit, verify=True)
    for size in (3, 7, 3):
        a, b = torch.randn(size, 4), torch.randn(size, 4)
        assert torch.equal(compiled(a, b), torch.tanh(a + b) * 2)
    assert sum(own_calls.values()) == 2


@pytest.mark.parametrize(("verify", "expected"), [(True, 3), ("all", 5)])
def test_each_layout_is_verified_once_or_in_every_call(verify, expected, own_calls):
    compiled, transform = compile_(lambda a, b: torch.tanh(a) * b, verify)
    a, b = torch.randn(6, 6), torch.randn(6, 6)
    for left, right in ((a, b), (a.t(), b), (a, b), (a, b.t()), (a.t(), b)):
        assert torch.equal(compiled(left, right), torch.tanh(left) * right)
    assert list(own_calls.values()) == [expected]
    stats = transform.stats()
    assert (stats.verified, stats.verify_compiles) == (3, 3)
    assert stats.verify_compile_seconds > 0


def test_without_verify_mode_nothing_runs_twice(own_calls, monkeypatch):
    compare_steps(verify=None)
    monkeypatch.setenv("FUSIONCACHE_VERIFY", "all")
    compare_steps(verify=False)
    assert not own_calls


def flip_a_bit(run, args):
    first, *others = run(args)
    first = first.clone()
    first.view(-1).view(torch.int32)[3] ^= 1
    return [first, *others]


def test_one_wrong_bit_is_found_and_written_down(wrong):
    wrong(flip_a_bit)
    compiled, transform = compile_(lambda x, y: torch.tanh(x) * y)
    with pytest.raises(VerificationError) as raised:
        compiled(torch.randn(3, 4), torch.randn(3, 4))
    (call,) = transform.calls()
    (report,) = reports()
    message = str(raised.value)
    assert call.template.name in message and "in whose place" in message and "Fusion0" in message
    assert "output 0 (" in message and "differs in 1 of 12 elements, by " in message
    assert "every bit must be the same" in message and str(report) in message
    text = report.read_text()
    assert "prims.tanh(x)" in text  # as Thunder wrote it
    assert text.count("%2: float32[3, 4] cpu = prims.tanh(") == 3  # as read, in canonical form, as compiled
    assert "differs in 1 of 12 elements" in text


def test_a_binding_that_is_wrong_for_a_later_region_is_found(monkeypatch):
    """The first region of the template is right: only each site's own function shows the error."""
    real, seen = sharing.canonicalize, []

    def canonicalize_wrongly(region):
        canonical = real(region)
        seen.append(region)
        slots = canonical.binding.slots[:: -1 if len(seen) == 2 else 1]
        return replace(canonical, binding=replace(canonical.binding, slots=slots))

    monkeypatch.setattr(sharing, "canonicalize", canonicalize_wrongly)

    def function(x, y, weight):
        x = weight @ (torch.tanh(x) * y)
        return weight @ (y * torch.tanh(x))  # in the other order: of equal regions only one is canonicalized

    compiled, transform = compile_(function)
    with pytest.raises(VerificationError, match=r"something else than Fusion1"):
        compiled(*(torch.randn(4, 4) for _ in range(3)))
    assert (transform.stats().templates, len(seen)) == (1, 2)


def write_wrongly(run, args):
    """Runs a function, and then changes an element of each argument that was written in place."""
    results = run(args)
    written = {result.data_ptr() for result in results}
    for arg in (arg for arg in args if arg.data_ptr() in written):
        arg.view(-1)[0] += 1
    return results


def test_a_wrong_write_in_place_is_found(wrong):
    wrong(write_wrongly)
    with pytest.raises(VerificationError, match="1 more"):
        count_in_place(1, verify=True)
    (report,) = reports()
    assert re.search(r"input \d, which it writes in place, differs in 1 of 24 elements", report.read_text())


def test_what_a_wrong_template_wrote_is_corrected_in_a_thunder_that_was_not_tried(untried, wrong):
    wrong(write_wrongly)
    expected, found, transform = count_in_place()
    assert transform.stats().bypasses[DIFFERENT] > 0
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("verify", "said", "expected"),
    [
        *((None, said, None) for said in (None, "", "0")),
        *((verify, said, verifier.VerifyMode.FIRST) for verify, said in ((None, "1"), (True, None), (True, "0"))),
        *((verify, "all", verifier.VerifyMode.EVERY) for verify in (None, True)),
        *(("all", said, verifier.VerifyMode.EVERY) for said in (None, "0", "1")),
        *((False, said, None) for said in ("all", "nonsense")),
    ],
)
def test_when_regions_are_verified(verify, said, expected, monkeypatch):
    if said is not None:
        monkeypatch.setenv("FUSIONCACHE_VERIFY", said)
    assert verifier.choose_mode(verify) is expected


def normed(dtype: str) -> Graph:
    """Returns a stream of two terms: its sum, a function of it, row sums, differences from these, and comparisons."""
    total = "add(convert_element_type(x, 'float32'), convert_element_type(y, 'float32'))"
    row = f"sum({total}, (1,))"
    wide = f"broadcast_in_dim({row}, (4, 9), (0,))"
    centred, above = f"convert_element_type(sub({total}, {wide}), '{dtype}')", f"gt({total}, {wide})"
    rounded = [f"convert_element_type({value}, 'float32')" for value in (centred, above)]
    types = dict.fromkeys("xy", TensorType(dtype, (4, 9), "cuda"))
    return draw(total, f"tanh({total})", row, centred, above, *rounded, **types)


@pytest.mark.parametrize(
    ("dtype", "plan", "alike", "every"),
    [
        ("bfloat16", Plan.INLINE, True, True),
        ("bfloat16", Plan.INLINE, False, False),
        ("bfloat16", Plan.FOLD, False, False),
        ("float32", Plan.INLINE, True, True),
        ("float32", Plan.INLINE, False, False),
        ("float32", Plan.FOLD, False, True),  # such a template must not be folded
    ],
)
def test_where_every_bit_must_be_kept(dtype, plan, alike, every):
    assert keeps_every_bit(canonicalize(normed(dtype)).graph, plan, alike=alike) is every


def test_how_far_a_reordered_value_may_be_off():
    rules = Reordered("bfloat16", 4096), Reordered("float32", 1), Reordered("float32", 4096), Reordered("float64", 4)
    assert [rule.relative for rule in rules] == [2 * 2.0**-7, 2 * 2.0**-23, 2 * 64 * 2.0**-23, 2 * 2 * 2.0**-52]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([[1, 2], [3, 4]]).t(),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.tensor([0.0, -0.0, torch.nan, torch.inf]),
        torch.empty(0, 3)[:, ::2],
        torch.ones(1, 2)[:, ::2].flatten(),
        torch.ones(3).expand(2, 3),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.nan,
    ],
)
def test_a_value_is_the_same_as_itself(value):
    assert describe_difference(copy.deepcopy(value), value, None) is None


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), "differs in 1 of 1 elements, by 0 at most; every bit"),
        (torch.tensor([torch.nan, 1]), torch.tensor([0.0, 1]), "differs in 1 of 2 elements, by inf at most"),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 4j]), "differs in 1 of 1 elements, by 2 at most"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), r"lies in memory by strides [3, 1] where the region's does by [1, 2]"),
        (torch.ones(2), torch.ones(1, 2), r"is float32[2] on cpu where the region has float32[1, 2] on cpu"),
        (3, 3.0, "is a int where the region has a float"),
        (3, 4, "is 3 where the region has 4"),
    ],
)
def test_what_is_said_of_a_difference(one, other, says):
    assert says in describe_difference(one, other, None)


def test_a_rule_allows_for_last_bits_of_the_largest_element():
    rule = Reordered("float32", 1)
    expected = torch.tensor([1024.0, 1.0, torch.inf, torch.nan])
    off = torch.tensor([0.0, 2 * 2.0**-13, 0.0, 0.0])
    assert describe_difference(expected + off, expected, rule) is None
    assert "differs in 1 of 4 elements" in describe_difference(expected + 2 * off, expected, rule)
    for lost in (torch.nan, torch.inf):
        found = expected.clone()
        found[1] = lost
        assert "differs in 1 of 4 elements, by inf at most" in describe_difference(found, expected, rule)


def test_a_copy_has_the_layout_and_alignment_of_its_source():
    base = torch.arange(60.0)
    for tensor in (base, base[3:27].reshape(4, 6).t(), base[5:5], base[7], base[1::4]):
        copy = verifier.copy_tensor(tensor)
        assert torch.equal(copy, tensor) and copy.stride() == tensor.stride()
        assert copy.data_ptr() % 64 == tensor.data_ptr() % 64 or not tensor.numel()
        assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_differs_with_nvfuser(dtype, own_calls):
    model = Blocks(4, 64).to("cuda", dtype)
    x = torch.randn(32, 64, device="cuda", dtype=dtype)
    compiled, transform = compile_(model, backend="nvfuser")
    assert are_same(step(compiled, model, x), step(compile_plain(model), model, x))
    assert sorted(own_calls.values()) == [1] * transform.stats().regions


@pytest.mark.gpu
def test_reductions_behind_a_folded_bfloat16_stream_are_within_the_rule(monkeypatch, own_calls):
    def function(*inputs):
        x = sum(inputs[1:], start=inputs[0])
        return x, torch.nn.functional.rms_norm(x, (x.shape[-1],)), torch.softmax(x, -1), x.float().square().sum()

    monkeypatch.setattr(sharing, "choose_plan", lambda *_: Plan.FOLD)
    compiled, _ = compile_(function, backend="nvfuser")
    compiled(*(torch.randn(64, 513, device="cuda", dtype=torch.bfloat16) for _ in range(9)))
    assert own_calls


@pytest.mark.gpu
def test_writes_in_place_with_nvfuser(own_calls):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="nvfuser", verify=True)
    found = run_counters(3, "cuda", fusioncache.executors(), [transform])
    assert all(map(torch.equal, found, run_counters(3, "cuda", fusioncache.executors())))
    assert own_calls


@pytest.mark.gpu
def test_a_wrong_executable_of_nvfuser_is_written_down(wrong):
    wrong(flip_a_bit, NvFuser)
    compiled, _ = compile_(lambda x, y: torch.tanh(x) * y, backend="nvfuser")
    with pytest.raises(VerificationError, match="differs in 1 of 64 elements"):
        compiled(torch.randn(8, 8, device="cuda"), torch.randn(8, 8, device="cuda"))
    assert reports()[0].read_text().count("fd.ops.tanh") == 2


@pytest.mark.gpu
def test_nothing_is_compared_while_a_cuda_graph_is_captured():
    model = Blocks(3, 64).cuda().requires_grad_(False)
    x = torch.randn(32, 64, device="cuda")
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), verify=True)
    compiled = thunder.jit(model, transforms=[transform, CUDAGraphTransform()])
    expected = thunder.jit(model)(x)
    for _ in range(4):
        assert torch.equal(compiled(x), expected)


def test_sums_may_be_added_up_in_another_order_and_every_bit_of_a_map_must_be_the_same(monkeypatch):
    """Code for any sizes returns slightly larger numbers, as sums in another order may."""
    persist_general = Eager.persist_general

    def compile_larger(self, general, args, values):
        compiled = persist_general(self, general, args, values)

        def fit_larger(args, values):
            run = compiled.run(args, values)
            return lambda args: [torch.nextafter(result, torch.tensor(torch.inf)) for result in run(args)]

        return replace(compiled, run=fit_larger)

    monkeypatch.setattr(Eager, "persist_general", compile_larger)
    compiled, transform = compile_(lambda x: (x * 2).sum(0))
    for length in (5, 7, 9):
        compiled(torch.randn(length, 3))
    assert transform.stats().general_hits == 1 and transform.stats().verified == 3
    compiled, _ = compile_(lambda x: x.tanh() * 2)
    compiled(torch.randn(5, 3))
    with pytest.raises(fusioncache.VerificationError, match="every bit must be the same"):
        compiled(torch.randn(7, 3))


KEY, OTHER = (program_key_of({"state": name}) for name in ("one", "another"))


def is_marked(store, sources="sources", key=KEY, compiler="nvfuser"):
    return VerifiedTemplates(store and Store.open(store.directory), sources).has(key, compiler)


def mark(store, sources="sources"):
    VerifiedTemplates(store, sources).add(KEY, "nvfuser")
    return is_marked(store, sources)


def test_a_later_process_finds_the_mark_of_its_thunder_its_template_and_its_compiler(store):
    assert mark(store)
    others = {"sources": "other"}, {"key": OTHER}, {"compiler": "inductor"}
    assert not any(is_marked(store, **other) for other in others)


def test_nothing_is_kept_without_a_store_or_known_sources(store):
    assert not mark(store, "") and not mark(None)
    assert not store.entries()


def test_what_is_no_mark_stands_for_nothing(store):
    store.save(KEY, VERIFIED_SLOT, {"verified.json": b"[]"}, name="verified template")
    assert not is_marked(store)
    assert mark(store)
