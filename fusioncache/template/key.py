"""The keys and the names of templates. Each key is composed of ingredients, which ``ir/keys.py`` lists."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fusioncache.ir import Graph, Ingredient, Instance, Key, keys
from fusioncache.ir.keys import GENERAL_LAYOUT, INGREDIENTS, LAYOUT, ORDER, Level, write_key, write_layouts
from fusioncache.ir.ops import RESIDUAL, op_traits
from fusioncache.ir.template import ArgumentLayouts, encode_region
from fusioncache.template.strides import depends_on_operand_order
from fusioncache.template.text import write_graph

_MOST_WORDS = 3


def template_name(graph: Graph, key: Key) -> str:
    """Returns a Python identifier such as ``residual_tanh_3f9a2c71``: uncommon ops, then the start of the digest."""
    words = list(dict.fromkeys(op.name.rpartition(".")[2] for op in graph.ops))
    telling = [word for word in words if not op_traits(f"prims.{word}").common] or words
    if RESIDUAL in telling:
        telling.remove(RESIDUAL)
        telling.insert(0, RESIDUAL)
    summary = "_".join(word.strip("_") for word in telling[:_MOST_WORDS])
    return f"{summary}_{key.digest[:8]}"


def graph_key(graph: Graph, environment: Mapping[str, str]) -> Key:
    """Returns the key of a graph and the environment of a backend.

    - A template key, if the graph has its parameters and the environment is from the time when the trace was rewritten.
    - An executable key, if the graph has no parameters and the environment is the current one.
    - The key of all regions with a skeleton, if the graph is that skeleton. No region and no general graph equals one.

    Args:
        graph: in canonical order.
        environment: by ingredient name.

    Raises:
        ValueError: if an ingredient is not registered, or does not belong to an environment.
    """
    return make_key(graph, environment, (Level.ENVIRONMENT,))


def artifact_key(
    graph: Graph,
    environment: Mapping[str, str],
    layouts: ArgumentLayouts,
    instance: Instance,
    *,
    of_any_sizes: bool = False,
) -> Key:
    """Returns the key of an executable in the store.

    Args:
        graph: in canonical order, without parameters.
        environment: of the backend and of its artifacts, by ingredient name.
        layouts: of the arguments.
        instance: the region that is compiled. Its order is an ingredient only where it affects the result.
        of_any_sizes: whether the code is made from code for any sizes.

    Raises:
        ValueError: if an ingredient is not registered.
    """
    sizes = {keys.SIZES: keys.ANY_SIZES} if of_any_sizes else {}
    return make_key(graph, {**environment, **call_ingredients(graph, layouts, instance), **sizes})


def general_key(graph: Graph, environment: Mapping[str, str], layout: str) -> Key:
    """Returns the key, in the store, of a graph that is compiled for any sizes.

    Args:
        graph: of a generalization.
        environment: of the backend and of its artifacts, by ingredient name.
        layout: the part of the arguments' layouts that the compilation depends on.

    Raises:
        ValueError: if an ingredient is not registered.
    """
    return make_key(graph, {**environment, GENERAL_LAYOUT: layout})


def call_ingredients(graph: Graph, layouts: ArgumentLayouts, instance: Instance) -> dict[str, str]:
    """Returns the ingredients of an artifact key that come from a call: the layouts, and the order if it matters."""
    found = {LAYOUT: write_layouts(layouts)}
    if depends_on_operand_order(graph, layouts):
        found[ORDER] = encode_region(instance).decode()
    return found


def make_key(
    graph: Graph,
    environment: Mapping[str, str],
    levels: tuple[Level, ...] = (Level.ENVIRONMENT, Level.ARTIFACT),
) -> Key:
    """Returns the key of a canonical graph with additional ingredients.

    Args:
        graph: in canonical order.
        environment: the additional ingredients, by name.
        levels: the levels that these ingredients may have.

    Raises:
        ValueError: if an ingredient is not registered, or is of another level.
    """
    return _assemble({**write_graph(graph), **_check_levels(environment, levels)})


def program_key_of(texts: Mapping[str, str]) -> Key:
    """Returns the key of a program, which has no graph.

    Args:
        texts: by ingredient name.

    Raises:
        ValueError: if an ingredient is not registered, or does not belong to a program.
    """
    return _assemble(_check_levels(texts, (Level.PROGRAM,)))


def _check_levels(texts: Mapping[str, str], levels: tuple[Level, ...]) -> dict[str, str]:
    """Returns ingredients sorted by name, after a check of their levels."""
    for name in texts:
        kind = INGREDIENTS.get(name)
        if kind is None:
            raise ValueError(f"no ingredient is registered as {name!r}: add it to fusioncache/ir/keys.py")
        if kind.level not in levels:
            raise ValueError(f"the ingredient {name!r} cannot be in this key: its level is {kind.level.name}")
    return {name: texts[name] for name in sorted(texts)}


def _assemble(texts: Mapping[str, str]) -> Key:
    text = write_key(texts)
    return Key(_digest(text), text, tuple(Ingredient(name, part, _digest(part)) for name, part in texts.items()))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
