"""Properties of generalizations on random regions at random sizes."""

import random

import numpy as np
from drawn_regions import evaluate, scramble
from generalized_regions import find_values, instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from sized_regions import Setting, draw_region, evaluate_general, recipes, settings_of_sizes

from fusioncache.template.canonical import canonicalize
from fusioncache.template.generalization import Generalization, Variable, generalize, only, write_general_graph
from fusioncache.template.skeleton import fill, read_holes, skeleton_of
from fusioncache.template.text import read_exactly, write_graph

several = st.lists(settings_of_sizes(), min_size=2, max_size=4)
quick = settings(max_examples=40)


def region(recipe, setting: Setting) -> Generalization:
    return only(canonicalize(draw_region(recipe, setting)).graph)


def alike(recipe, drawn: list[Setting]) -> list[Generalization]:
    """The regions of a recipe at these sizes that have the skeleton of the first one."""
    found = [region(recipe, setting) for setting in drawn]
    return [one for one in found if one.skeleton == found[0].skeleton]


@quick
@given(recipes(), settings_of_sizes())
def test_a_skeleton_and_what_was_in_its_holes_are_the_region(recipe, setting):
    graph = canonicalize(draw_region(recipe, setting)).graph
    assert fill(skeleton_of(graph), read_holes(graph)) == graph
    assert write_general_graph(only(graph)).graph == graph


@quick
@given(recipes())
def test_regions_at_sizes_in_one_order_have_the_same_size_in_the_same_hole(recipe):
    """That is, no two sizes are equal, and what is ordered by sizes is ordered alike."""
    here, there = Setting(3, 11, 17, (0.1, 3.0)), Setting(4, 10, 19, (0.2, 5.0))
    one, other = region(recipe, here), region(recipe, there)
    assert one.skeleton == other.skeleton
    meant = [{value: name for name, value in setting.sizes().items()} for setting in (here, there)]
    pairs = [pair for pair in zip(one.symbols, other.symbols, strict=True) if isinstance(pair[0], int)]
    assert [meant[0][size] for size, _ in pairs] == [meant[1][size] for _, size in pairs]


@quick
@given(recipes(), several)
def test_a_generalization_is_the_least_general_one_of_which_each_region_is_an_instance(recipe, drawn):
    regions = alike(recipe, drawn)
    general = generalize(regions)
    for one in regions:
        assert instantiate(general, find_values(general, one)) == instantiate(one, ())
    columns = list(zip(*(one.symbols for one in regions), strict=True))
    for symbol, column in zip(general.symbols, columns, strict=True):
        assert isinstance(symbol, Variable) == (len(set(column)) > 1)
    assert len(general.variables) == len({column for column in columns if len(set(column)) > 1})
    graph = write_general_graph(general).graph
    assert read_exactly(write_graph(graph)) == graph


@quick
@given(recipes(), several, st.randoms(use_true_random=False))
def test_neither_order_nor_grouping_of_the_regions_matters(recipe, drawn, chance):
    regions = alike(recipe, drawn)
    general = generalize(regions)
    assert generalize(chance.sample(regions, len(regions))) == general
    cut = chance.randint(1, len(regions))
    groups = [group for group in (regions[:cut], regions[cut:]) if group]
    assert generalize([generalize(group) for group in groups]) == general
    assert generalize([general, *regions[cut:]]) == generalize([general]) == general


@quick
@given(recipes(), settings_of_sizes(), st.integers())
def test_the_way_a_region_is_written_does_not_matter(recipe, setting, seed):
    graph = draw_region(recipe, setting)
    other = scramble(graph, random.Random(seed))
    assert only(canonicalize(other).graph) == only(canonicalize(graph).graph)


@quick
@given(recipes(), several, settings_of_sizes(), st.data())
def test_regions_share_only_if_they_compute_the_same(recipe, drawn, setting, data):
    """Regions at sizes of which none went into the generalization, too, and of another recipe with one other step."""
    general = generalize(alike(recipe, drawn))
    place, step = data.draw(st.integers(0, len(recipe) - 1)), data.draw(recipes())[0]
    for steps in (recipe, [*recipe[:place], step, *recipe[place + 1 :]]):
        for one in (setting, *drawn):
            graph = draw_region(steps, one)
            canonical, chance = canonicalize(graph), np.random.default_rng(0)
            values = find_values(general, only(canonical.graph))
            if values is not None:
                inputs = [chance.integers(-3, 4, type_.shape).astype("float32") for type_ in graph.inputs]
                found = evaluate_general(general, values, canonical, inputs)
                assert all(map(np.array_equal, found, evaluate(graph, inputs)))
