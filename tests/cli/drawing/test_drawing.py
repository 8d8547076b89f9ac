"""Pictures of graphs: what is drawn, where it goes, and that every text is escaped."""

import random
import xml.etree.ElementTree as ElementTree

from fusioncache.cli.listings import dot_text, picture_of, svg_text
from fusioncache.ir import Const, Graph, Op, Ref, TensorType

_VECTOR = TensorType("float32", (4,), "cpu")


def _random_graph(seed: int, ops: int = 40) -> Graph:
    """Each op takes two values, most of them recent ones."""
    chance, made, inputs = random.Random(seed), [], 3
    for number in range(inputs, inputs + ops):
        operands = tuple(Ref(chance.randrange(max(0, number - chance.choice((3, 20))), number)) for _ in range(2))
        made.append(Op("prims.add", operands, (_VECTOR,)))
    return Graph((_VECTOR,) * inputs, tuple(made), (inputs + ops - 1, inputs))


def test_sizes_tuples_and_dropped_results_are_drawn():
    vector = TensorType("float32", (Ref(1),), "cpu")
    dims = (Const("int", "0"),)
    op = Op("prims.var_mean", (Ref(0), dims), (None, vector), (("correction", Const("int", "1")),))
    picture = picture_of(Graph((vector,), (op,), (3,), 1))
    nodes = picture.nodes
    kinds = {"v0": "input", "v1": "size", "v2": "op", "out0": "output"}
    assert {name: node.kind for name, node in nodes.items()} == kinds
    assert (nodes["v2"].label, nodes["v2"].detail) == ("var_mean (0) correction=1", "float32[%1]")
    assert set(picture.edges) == {("v0", "v2"), ("v1", "v2"), ("v2", "out0")}


def test_svg_has_a_box_for_each_node_and_a_curve_for_each_edge():
    picture = picture_of(_random_graph(0))
    text = svg_text(picture, "a <b> & 'c'")
    assert text == svg_text(picture_of(_random_graph(0)), "a <b> & 'c'")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}g")) == len(picture.nodes)
    assert len(root.findall(f"{space}path")) == len(picture.edges)
    assert root.find(f"{space}title").text == root.get("aria-label") == "a <b> & 'c'"
    boxes = [box for group in root.findall(f"{space}g") for box in group.findall(f"{space}rect")]
    assert all(float(box.get("x")) >= 0 for box in boxes)
    assert all(float(box.get("x")) + float(box.get("width")) <= float(root.get("width")) + 1 for box in boxes)


def test_every_text_is_escaped():
    op = Op("prims.<script>", (Ref(0), Const("str", 'a"\\b\n</text>')), (_VECTOR,))
    picture = picture_of(Graph((_VECTOR,), (op,), (1,)))
    ElementTree.fromstring(svg_text(picture, "x"))
    assert "<script>" not in svg_text(picture, "x")
    labels = [line for line in dot_text(picture, 'x"').splitlines() if "script" in line]
    assert len(labels) == 1
    assert 'digraph "x\\""' in dot_text(picture, 'x"')
