"""What fusioncache expects of the names that it takes from Thunder; the list of them is what the sources use."""

import ast
import sys
from contextvars import ContextVar
from types import FunctionType, ModuleType

import pytest
import thunder
import torch
from repository import PACKAGE
from thunder_names import write_names

from fusioncache.thunder_adapter import accelerator_api, api
from fusioncache.thunder_adapter.accelerator_api import MODULES, NAMES
from fusioncache.thunder_adapter.capabilities import find_missing, list_names


def list_used(module):
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
    trees = [ast.parse(text) for text in texts if f"from {module.__name__} import" in text]
    imports = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports if node.module == module.__name__ for alias in node.names}


def test_each_name_is_used_and_each_use_has_a_name():
    names = {name for name in vars(api) if not name.startswith("__")}
    assert names - {"annotations", "call_waiting"} == list_used(api)
    of_accelerators = [name for names in NAMES.values() for name in names.split()]
    assert {*of_accelerators, *MODULES} == list_used(accelerator_api)
    assert len(list_used(accelerator_api)) == len(of_accelerators) + len(MODULES)  # none is in two modules


class Seen(api.Transform):
    """Keeps each trace that a transform is given, and what Thunder says of the compilation meanwhile."""

    def __init__(self):
        self.traces, self.data = [], []

    def transform_trace_post_optimization(self, trace, **_):
        self.traces.append(trace)
        self.data.append(api.get_compile_data())
        return trace


def test_a_trace_is_bound_symbols_of_symbols_and_proxies():
    seen = Seen()
    compiled = thunder.jit(lambda x, weight: torch.nn.functional.gelu(x @ weight).sum(0), transforms=[seen])
    compiled(torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)).sum().backward()
    forward, backward = seen.traces
    assert api.TraceTag.AUGMENTED_FORWARD in forward.tags and api.TraceTag.BACKWARD in backward.tags
    assert seen.data == [thunder.compile_data(compiled)] * 2 and api.get_compile_data() is None
    assert all(isinstance(call, api.BoundSymbol) and isinstance(call.sym, api.Symbol) for call in forward.bound_symbols)
    returns = forward.bound_symbols[-1]
    results, (saved, _) = returns.args
    assert returns.sym.id is api.PrimIDs.RETURN and forward.output == returns.args
    assert results["flat_args"] == list(forward.args) and results["flat_output"][0].shape == (5,)
    assert {each.name for each in saved} >= {"x"}
    first = next(call for call in forward.bound_symbols if call.sym.name in ("matmul", "linear"))
    assert isinstance(first.output, api.TensorProxy)
    assert {each.name for each in first.flat_proxy_args} == {"x", "weight"}
    described = first.output.shape, first.output.dtype, first.output.device
    assert described == ((3, 5), api.dtypes.float32, api.Device("cpu"))


def test_the_list_has_every_name_that_the_package_uses():
    """``PYTHONPATH=tests/helpers python -m thunder_names > fusioncache/thunder_adapter/names.txt`` writes it anew."""
    assert (PACKAGE / "thunder_adapter" / "names.txt").read_text() == write_names()


def test_this_thunder_has_every_name_and_one_that_is_gone_is_found(monkeypatch):
    assert [missing for accelerator in list_names() for missing in find_missing(accelerator)] == []
    with monkeypatch.context() as gone:
        gone.delattr(thunder.core.jit_ext, "get_jit_ctx")
        assert find_missing("sizes") == ["thunder.core.jit_ext.get_jit_ctx"]
        assert find_missing("graphs") == []
    monkeypatch.setitem(sys.modules, "thunder.core.compile_data", None)
    assert find_missing("tracing") == ["thunder.core.compile_data"]


@pytest.mark.parametrize("module", NAMES)
def test_no_table_is_bound_by_its_name(module):
    """Another may take its place in Thunder: it is an attribute of Thunder's module, and asked for where it is read."""
    fixed = (FunctionType, ModuleType, ContextVar, api.Symbol, type, int, str)
    assert [name for name in NAMES[module].split() if not isinstance(getattr(accelerator_api, name), fixed)] == []
