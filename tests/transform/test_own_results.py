"""Results are tensors of their own, or views of one another and of arguments, as those of plain Thunder are.

Random programs are in ``tests/programs/test_programs.py``.
"""

import pytest
import torch
from drawn_regions import Sketch
from models import compile_with

from fusioncache.cache.executable import instance_in_order
from fusioncache.cache.results import as_torch_gives
from fusioncache.ir import TensorType


def test_two_names_for_one_result_are_two_tensors_with_one_memory():
    def function(w):
        v = torch.sin(w)
        return v, v.reshape(6, 6), v.view(6, 6)

    ours, _ = compile_with(function, programs=False)
    for _ in range(2):
        one, *others = ours(torch.zeros(6, 6))
        one.unsqueeze_(0)
        assert [tuple(other.shape) for other in others] == [(6, 6), (6, 6)]
        one.add_(1)
        assert all(torch.equal(other, torch.ones(6, 6)) for other in others)


def lay_over(tensor):
    """A tensor in the memory of another one, of which autograd does not know that it is a view."""
    return torch.empty(0).set_(tensor.untyped_storage(), 0, tensor.shape, tensor.stride())


@pytest.mark.parametrize("of_argument", [True, False])
def test_a_view_that_a_compiler_does_not_tell_autograd_of_is_made_one(of_argument):
    """A write into it would change, unnoticed, what autograd saved of the other tensor."""
    sketch = Sketch()
    x = sketch.input()
    base = x if of_argument else sketch.op("neg", x)
    view = sketch.op("transpose", base, (1, 0), type_=TensorType("float32", (3, 2), "cpu"))
    instance = instance_in_order(sketch.graph(view) if of_argument else sketch.graph(base, view))

    def run(args):
        base = args[0] if of_argument else -args[0]
        view = lay_over(base.t())
        return [view] if of_argument else [base, view]

    args = [torch.randn(2, 3)]
    fixed, first = as_torch_gives(run, instance, args, run(args))
    for results in (first, fixed(args)):
        base, view = args[0] if of_argument else results[0], results[-1]
        assert view._is_view() and torch.equal(view, base.t())
        before = base._version
        view.zero_()
        assert base._version > before
