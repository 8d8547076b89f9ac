"""What fusioncache expects of the names that it takes from Thunder, on traces of a real model."""

import ast

import pytest
import thunder
import torch
from repository import PACKAGE

from fusioncache.thunder_adapter import accelerator_api, api


class Seen(api.Transform):
    """Keeps each trace that a transform is given, and what Thunder says of the compilation meanwhile."""

    def __init__(self):
        self.traces, self.data = [], []

    def transform_trace_post_optimization(self, trace, **_):
        self.traces.append(trace)
        self.data.append(api.get_compile_data())
        return trace


def model(x, weight):
    return torch.nn.functional.gelu(x @ weight).sum(0)


@pytest.fixture(scope="module")
def seen():
    seen = Seen()
    seen.compiled = thunder.jit(model, transforms=[seen])
    seen.compiled(torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)).sum().backward()
    return seen


@pytest.fixture(scope="module")
def forward(seen):
    return seen.traces[0]


def list_used(module):
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    imports = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports if node.module == module.__name__ for alias in node.names}


def test_each_name_is_used_and_each_use_has_a_name():
    names = {name for name in vars(api) if not name.startswith("__")}
    assert names - {"annotations", "call_waiting"} == list_used(api)
    of_accelerators = {name for names in accelerator_api.NAMES.values() for name in names.split()}
    assert of_accelerators | accelerator_api.MODULES.keys() == list_used(accelerator_api)


def test_a_transform_gets_the_forward_and_then_the_backward_trace_and_the_compile_data_meanwhile(seen):
    assert [type(trace) for trace in seen.traces] == [api.TraceCtx, api.TraceCtx]
    tags = [trace.tags for trace in seen.traces]
    assert api.TraceTag.AUGMENTED_FORWARD in tags[0] and api.TraceTag.BACKWARD in tags[1]
    data, statistics = thunder.compile_data(seen.compiled), thunder.compile_stats(seen.compiled)
    assert seen.data == [data, data]
    assert isinstance(data, api.CompileData) and isinstance(statistics, api.CompileStats)
    symbolic = thunder.compile_data(thunder.jit(model, cache="symbolic values"))
    assert symbolic.cache_option is api.CACHE_OPTIONS.SYMBOLIC_VALUES
    assert api.get_compile_data() is None
    with api.compile_data_and_stats(data, statistics):
        assert api.get_compile_data() is data


def test_a_trace_is_bound_symbols_of_symbols_and_proxies(forward):
    assert all(isinstance(call, api.BoundSymbol) and isinstance(call.sym, api.Symbol) for call in forward.bound_symbols)
    returns = forward.bound_symbols[-1]
    results, (saved, _) = returns.args
    assert returns.sym.id is api.PrimIDs.RETURN and forward.output == returns.args
    assert results["flat_args"] == list(forward.args) and results["flat_output"][0].shape == (5,)
    assert {each.name for each in saved} >= {"x"}
    first = next(call for call in forward.bound_symbols if call.sym.name in ("matmul", "linear"))
    result = first.output
    assert isinstance(result, api.TensorProxy) and isinstance(result, api.Proxy)
    assert (result.shape, result.dtype, result.device) == ((3, 5), api.dtypes.float32, api.Device("cpu"))
    assert result.device.devicetype is api.DeviceType.CPU and api.to_torch_dtype(result.dtype) is torch.float32
    assert {each.name for each in first.flat_proxy_args} == {"x", "weight"}
    assert [each.name for each in first.flat_proxy_outs] == [result.name]


def test_proxies_are_compared_by_name_as_variables(forward):
    with api.tracectx(api.from_trace(forward)):
        one = api.TensorProxy("a", shape=(2,), device=api.devices.cpu, dtype=api.dtypes.float32)
        other = api.TensorProxy("b", like=one)
        number = api.IntegerProxy("n", 3)
    assert api.variableify(one) == api.variableify(one) != api.variableify(other)
    assert isinstance(api.variableify(one), api.Variable) and api.unvariableify(api.variableify(one)) is one
    assert api.variableify(3) == 3
    assert isinstance(number, api.NumberProxy) and (number.value, number.python_type) == (3, int)
    assert not isinstance(number, api.TensorProxy | api.FloatProxy | api.ComplexProxy | api.CollectionProxy)
    assert issubclass(api.FutureTensorProxy, api.Proxy) and not issubclass(api.FutureTensorProxy, api.TensorProxy)
