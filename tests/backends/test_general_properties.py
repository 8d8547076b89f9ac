"""Random regions at random sizes: what is compiled for any sizes computes what each region computes."""

from dataclasses import replace

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from models import are_same
from sized_regions import Setting, Step, draw_region, recipes, settings_of_sizes

from fusioncache.backends.eager import Eager
from fusioncache.cache.executable import Builder
from fusioncache.cache.generals import GeneralExecutable
from fusioncache.ir import Const, Graph, TensorType
from fusioncache.ir.template import layouts_of
from fusioncache.template.generalization import make_family, only
from fusioncache.template.skeleton import skeleton_of

SIZES = st.sampled_from([2, 3, 4, 5, 6, 8, 12])


MAKES = {"dtype": Const("dtype", "float32"), "device": Const("device", "cpu")}
KEYWORDS = {"prims.full": MAKES, "prims.iota": {**MAKES, "start": Const("int", "0"), "step": Const("int", "1")}}


def draw(recipe: list[Step], setting: Setting) -> Graph:
    """A region that Thunder can run: drawings leave out what tells nothing about sizes."""
    region = draw_region(recipe, setting)
    ops = tuple(replace(op, kwargs=tuple(sorted(KEYWORDS.get(op.name, {}).items()))) for op in region.ops)
    return replace(region, ops=ops)


def make_arguments(region: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [type_.shape for type_ in region.inputs if isinstance(type_, TensorType)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(recipes(), st.lists(settings_of_sizes(SIZES), min_size=3, max_size=4))
def test_a_function_for_any_sizes_is_each_of_its_regions(recipe: list[Step], drawn: list[Setting]):
    regions = list(dict.fromkeys(draw(recipe, setting) for setting in drawn))
    alike = [region for region in regions if skeleton_of(region) == skeleton_of(regions[0])]
    assume(len(alike) > 2)
    executable = GeneralExecutable(make_family(alike[:2]), Builder(Eager()))
    for region in alike:
        values, args = executable.values_of(only(region).symbols), make_arguments(region)
        if values is not None:
            served = executable.serve(args, layouts_of(args), values)
            assert are_same(list(served.run(args)), list(Eager().compile(region, args)(args)))
