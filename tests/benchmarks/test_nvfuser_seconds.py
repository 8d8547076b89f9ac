"""The benchmark of nvFuser's seconds, as far as it needs neither nvFuser nor a GPU."""

import json

import pytest
import torch
from click.testing import CliRunner

from benchmarks.common import processes
from benchmarks.common.environment import Machine
from benchmarks.common.nvfuser_trace import read_calls
from benchmarks.nvfuser_seconds import __main__ as nvfuser_seconds
from benchmarks.nvfuser_seconds.code import digest_code
from benchmarks.nvfuser_seconds.views import compile_parts, split_views
from fusioncache.backends.eager import Eager
from fusioncache.ir import Const, Graph, Op, Ref, TensorType

WIDE, FLAT, TURNED = (TensorType("float32", shape, "cpu") for shape in ((4, 6), (24,), (6, 4)))
WHOLE = "FusionExecutorCache::runFusionWithInputs"


def shape(*sizes: int) -> tuple[Const, ...]:
    return tuple(Const("int", str(size)) for size in sizes)


RESHAPE = Op("prims.reshape", (Ref(1), shape(24)), (FLAT,))
TURN = Op("prims.transpose", (Ref(0), shape(1, 0)), (TURNED,))


def test_views_that_come_last_are_parted_from_what_computes():
    graph = Graph((WIDE,), (Op("prims.tanh", (Ref(0),), (WIDE,)), RESHAPE, TURN), (1, 2, 3))
    core, views = split_views(graph)
    assert [op.name for op in core.graph.ops] == ["prims.tanh"] and core.outputs == (1,)
    assert [op.name for op in views.graph.ops] == ["prims.reshape", "prims.transpose"] and views.inputs == (0, 1)
    args = [torch.randn(4, 6)]
    found = compile_parts(graph, args, lambda part, given: Eager().compile(part, given))(args)
    assert all(map(torch.equal, found, [args[0].tanh(), args[0].tanh().reshape(24), args[0].T]))


def test_a_view_that_is_computed_with_is_no_part_of_the_views():
    graph = Graph((WIDE,), (Op("prims.tanh", (Ref(0),), (WIDE,)), RESHAPE, Op("prims.neg", (Ref(2),), (FLAT,))), (3,))
    core, views = split_views(graph)
    assert views is None and core.graph == graph
    same = Op("prims.convert_element_type", (Ref(1), Const("dtype", "float32")), (WIDE,))
    core, views = split_views(Graph((WIDE,), (Op("prims.tanh", (Ref(0),), (WIDE,)), same), (2,)))
    assert len(core.graph.ops) == 1 and views.outputs == (2,)
    nothing, views = split_views(Graph((WIDE,), (TURN,), (1,)))
    assert nothing is None and views.outputs == (1,)


def test_code_is_the_same_under_other_numbers_only():
    one = "__global__ void nvfuser_a_f0_g1(T5 T7) { T7[i12] = T5[i12] * 1.5f; }"
    assert digest_code(one) == digest_code(one.replace("T5", "T2").replace("i12", "i4").replace("f0_g1", "f3_g0"))
    assert digest_code(one) != digest_code(one.replace("T5[i12]", "T7[i12]"))
    assert digest_code(one) != digest_code(one.replace("1.5f", "1.6f"))


def test_each_call_has_the_functions_that_it_was_in(tmp_path):
    line = '{{ "name": "{}", "ph": "{}", "pid": 1, "tid": {}, "ts": {} }},\n'
    call = [(WHOLE, "B", 1, 0), ("a", "B", 1, 1), ("a", "B", 1, 2), ("b", "B", 2, 2), ("b", "E", 2, 5)]
    call += [("a", "E", 1, 4), ("a", "E", 1, 7), (WHOLE, "E", 1, 10)]
    moved = [(name, kind, thread, moment + 20) for name, kind, thread, moment in call]
    file = tmp_path / "trace.json"
    file.write_text("".join(line.format(*event[:3], event[3] * 1_000_000) for event in [*call, *moved]))
    first, second = read_calls(file)
    assert first == second and set(first) == {WHOLE, "a", "b"}
    assert (first["a"].count, first["a"].seconds, first["a"].own) == (2, 6.0, 6.0)
    assert (first[WHOLE].seconds, first[WHOLE].own) == (10.0, 4.0)


def test_a_way_is_compared_with_the_first(tmp_path, monkeypatch):
    def call(module, options, **_):
        if module != "benchmarks.nvfuser_seconds.worker":
            return {}
        name = options["variant"]["name"]
        if name == "ptxas 1":
            raise processes.ProcessFailed("it died", "")
        if name == "in turns":
            return [{"in_turns": {"": 2.0, "nvtx": 1.5}}]
        return [{"seconds": 1.0 + (name == "views"), "cpu": 1.0, "bits": "a", "code": name, "kernels": 1}]

    monkeypatch.setattr(nvfuser_seconds, "inspect_machine", lambda _: Machine({}, "cuda", "nvfuser"))
    monkeypatch.setattr(nvfuser_seconds, "fill_store", lambda *_: tmp_path / "store")
    monkeypatch.setattr(processes, "call", call)
    options = ["--variants", "base,views,ptxas 1,in turns", "--json", str(tmp_path / "seconds.json")]
    done = CliRunner().invoke(nvfuser_seconds.main, options)
    assert done.exit_code == 1 and "without nvtx: 1.50 s" in done.stdout
    base, views, failed, turns = json.loads((tmp_path / "seconds.json").read_text())["points"]
    assert base["compared"]["ratio"] == 1.0 and base["compared"]["other_code"] == 0
    found = {"ratio": 2.0, "other_bits": 0, "other_code": 1}
    assert views["compared"] == pytest.approx(views["compared"] | found)
    assert failed["error"] == "it died" and "compared" not in turns
