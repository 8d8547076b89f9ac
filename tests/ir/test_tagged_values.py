"""Dataclasses as JSON: what was written comes back, and each type takes nothing else."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar, Literal

import pytest

from fusioncache.ir import strict_json
from fusioncache.ir.codec import from_json, to_json


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Leaf:
    TAG: ClassVar[str] = "leaf"

    name: Annotated[str, re.compile("[a-z]+"), str.islower]
    color: Color
    sizes: tuple[int, ...] | None


@dataclass(frozen=True)
class Tree:
    TAG: ClassVar[str] = "tree"

    kind_of_wood: Literal["oak", "elm"]
    parts: "Mapping[str, Leaf | Tree]"
    option: str | bool | int | float | tuple[str, ...] | None
    pair: tuple[int, float]

    def validate(self) -> None:
        if len(self.parts) > 2:
            raise ValueError("has too many parts")


LEAF = Leaf("a", Color.RED, (1, 2))
TREE = Tree("oak", {"left": LEAF, "right": Tree("elm", {}, ("x",), (1, 0.5))}, None, (3, 2))


def read(value):
    return from_json(Tree, strict_json.decode(strict_json.encode(value), "tree"))


@pytest.mark.parametrize("option", [None, True, 1, 0.5, "text", ("a", "b")])
def test_what_was_written_comes_back(option):
    tree = Tree("oak", TREE.parts, option, (3, 2))
    assert read(to_json(tree)) == tree
    assert to_json(tree)["kind"] == "tree"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "leaf"}, "tree is .* not an object with the fields"),
        ({"kind_of_wood": "ash"}, "tree.kind_of_wood is 'ash', not one of oak, elm"),
        ({"parts": {"a": {"kind": "bush"}}}, "tree.parts.a is .* not one of Leaf, Tree"),
        ({"parts": {"a": {**to_json(LEAF), "name": "A"}}}, r"parts.a.name is 'A', not a text like \[a-z\]\+"),
        ({"parts": {"a": {**to_json(LEAF), "color": "green"}}}, "not one of red, blue"),
        ({"parts": {"a": {**to_json(LEAF), "sizes": [True]}}}, r"sizes\[0\] is True, not an integer"),
        ({"parts": dict.fromkeys("abc", to_json(LEAF))}, "has too many parts"),
        ({"parts": []}, "tree.parts is .* not an object"),
        ({"option": {}}, "tree.option is .* not one of"),
        ({"pair": [1]}, "tree.pair is .* not a list of 2"),
        ({"more": 1}, "tree is .* not an object with the fields"),
    ],
)
def test_nothing_else_passes(change, reason):
    with pytest.raises(ValueError, match=reason):
        read({**to_json(TREE), **change})
