"""Any region can run operation by operation, even one with operations that Thunder's executor for torch cannot run."""

import itertools
from functools import partial

import fake_cuda
import pytest
import thunder.torch as ltorch
import torch
from drawn_regions import Sketch

from fusioncache.backends.eager import run_one_by_one
from fusioncache.ir import Instance, TensorType
from fusioncache.ir.template import decode_region, encode_region
from fusioncache.transform.region import region_of

COMPARISONS = "eq", "ne", "ge", "gt", "le", "lt"
OPERATIONS = ("fmod", "remainder", "pow", "sub", "atan2", "nextafter", "div", "maximum", "minimum", *COMPARISONS)
INTEGERS = ("uint8", "int32", "int64")
FLOATS = ("float32", "float64")
NARROW = ("float16", "bfloat16")
DTYPES = {
    **dict.fromkeys(OPERATIONS, INTEGERS + FLOATS),  # Thunder computes narrower dtypes in float32
    **dict.fromkeys((*COMPARISONS, "maximum", "minimum"), INTEGERS + FLOATS + NARROW),
    **dict.fromkeys(("atan2", "nextafter", "div"), FLOATS),
}


def tensor_of(dtype, shape):
    values = torch.tensor([1, -2, 3, -4, 5, -7])
    values = values.abs() if dtype == "uint8" else values if dtype in INTEGERS else values / 4
    return values.to(getattr(torch, dtype))[: torch.Size(shape).numel()].reshape(shape)


def run_operation(name, *args, dtype):
    """Runs one operation on tensors and numbers, with a result of this dtype."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    s = Sketch()
    inputs = [s.input(TensorType(str(arg.dtype).removeprefix("torch."), tuple(arg.shape), "cpu")) for arg in tensors]
    refs = [inputs.pop(0) if isinstance(arg, torch.Tensor) else arg for arg in args]
    shape = tuple(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    (result,) = run_one_by_one(s.graph(s.op(name, *refs, type_=TensorType(dtype, shape, "cpu"))))(tensors)
    return result


@pytest.mark.parametrize("name", OPERATIONS)
def test_numbers_stand_wherever_tensors_do(name):
    """Torch's functions take numbers only in some places. A primitive treats a number like a 0-d tensor."""
    for dtype, shape in itertools.product(DTYPES[name], ((3, 2), ())):
        tensor, number = tensor_of(dtype, shape), 3 if dtype in INTEGERS else 2.5
        as_tensor = torch.tensor(number, dtype=tensor.dtype)
        result = "bool8" if name in COMPARISONS else dtype
        for args, others in (((tensor, number), (tensor, as_tensor)), ((number, tensor), (as_tensor, tensor))):
            found, expected = run_operation(name, *args, dtype=result), getattr(torch, name)(*others)
            torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_number_chooses_as_a_tensor_does():
    x = tensor_of("float32", (3, 2))
    assert torch.equal(run_operation("where", True, x, x + 1, dtype="float32"), x)
    assert torch.equal(run_operation("where", False, x, 2.0, dtype="float32"), torch.full_like(x, 2.0))


def run_on_cpu(function, inputs, *, grad):
    """Runs the regions that nvFuser's executor makes of a function for a GPU, operation by operation on the CPU."""
    values = {f"input{number}": value for number, value in enumerate(inputs)}
    traces = fake_cuda.make_traces(function, [tuple(value.shape) for value in inputs], grad=grad)
    for trace in traces:
        (fusion,) = (symbol for symbol in trace.bound_symbols if symbol.sym.is_fusion)
        graph = region_of(fusion)
        written = encode_region(Instance(graph, tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs)))))
        region = decode_region(written.replace(b"cuda:0", b"cuda").replace(b"cuda", b"cpu")).region
        args = [values.get(proxy.name, torch.tensor(1.0)) for proxy in fusion.args]  # the gradient of the result is 1
        outputs = dict(zip((proxy.name for proxy in fusion.output), run_one_by_one(region)(args), strict=True))
        values |= outputs
        yield next(iter(outputs.values()))


@pytest.mark.parametrize("function", [lambda lerp, x, y: lerp(3 // x, y, 0.3), lambda lerp, x, y: lerp(x, y, x.sin())])
def test_regions_that_nvfuser_makes_of_what_torch_has_no_function_for(function):
    x, y = torch.linspace(-3, 4, 16).reshape(4, 4), torch.linspace(1, 2, 16).reshape(4, 4)
    (found,) = run_on_cpu(partial(function, ltorch.lerp), [x, y], grad=False)
    torch.testing.assert_close(found, function(torch.lerp, x, y))


@pytest.mark.parametrize("targets", [(0, 4, 2, 1), (0, -100, 2, -100), (-100,) * 4])
def test_losses_of_nvfusers_own(targets):
    def loss(x, targets):
        return ltorch.cross_entropy(x * 2.0, ltorch.to(targets, dtype=torch.int64))

    x = torch.linspace(-3, 5, 20).sin().reshape(4, 5).requires_grad_()
    found, gradient = run_on_cpu(loss, [x.detach(), torch.tensor(targets, dtype=torch.float32)], grad=True)
    expected = torch.nn.functional.cross_entropy(x * 2.0, torch.tensor(targets))
    expected.backward()
    torch.testing.assert_close((found, gradient), (expected.detach(), x.grad), equal_nan=True)
