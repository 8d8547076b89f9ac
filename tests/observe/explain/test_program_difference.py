"""Why a program was traced again: the sentence for each kind of difference, what comes first, and the nearest key."""

from pathlib import Path

import pytest

from fusioncache.observe.explain.program_difference import (
    ProgramDifference,
    compare_program_keys,
    compare_read,
    find_source_line,
)

SILU = "torch.nn.functional.silu"
ONE, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
HIDDEN, OTHER_HIDDEN = (f"hidden str {letter * 32}" for letter in "ab")
TRACE = """
  # /home/me/model.py:31: \t        return F.silu(x) * self.scale
  t281 = torch.nn.functional.linear(t113, t_layers_0_a_weight, None)  # t281: "cpu f32[4, 32]"
    # /home/me/model.py:40: \t        return unsilu(x)
"""


def _list_reads() -> list[list[str | None]]:
    """Returns kind, name, text before and after, and the sentence of each case."""
    cases = Path(__file__).with_name("reads.txt").read_text().strip().split("\n\n")
    lines = [[line.partition(" ")[2] for line in case.splitlines()] for case in cases]
    return [[None if text == "(absent)" else text for text in case] for case in lines]


@pytest.mark.parametrize(("kind", "name", "before", "after", "sentence"), _list_reads())
def test_a_read_that_differs(kind, name, before, after, sentence):
    assert compare_read(kind, name, before, after).sentence == sentence


def test_hidden_values_are_in_nothing_that_is_printed():
    difference = compare_read("global", "mine.API_KEY", HIDDEN, OTHER_HIDDEN)
    assert difference.compare("A", "B") == "They differ in `mine.API_KEY`: values hidden."
    assert difference.values == ("(hidden)", "(hidden)")
    assert difference.to_dict()["before"] == difference.to_dict()["after"] == "(hidden)"
    assert not compare_read("global", "mine.A", None, HIDDEN).is_hidden


def test_a_line_of_a_key_that_differs():
    one = {"settings": "width 8\ndepth 4", "backend": "x"}
    (difference,) = compare_program_keys(one, {"settings": "width 8\ndepth 5", "backend": "x"})
    assert difference == ProgramDifference("settings", "depth", "the setting depth", "4", "5")
    (gone,) = compare_program_keys(one, {"settings": "width 8", "backend": "x"})
    assert gone.sentence == "the setting depth is absent, and was 4 when this program was made"
    (new,) = compare_program_keys({**one, "settings": "width 8"}, one)
    assert new.sentence == "the setting depth is 4, and was absent when this program was made"
    assert compare_program_keys(one, dict(reversed(one.items()))) == ()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("m.A 1\nm.A:x 3", "m.A 2\nm.A:x 4", ["`m.A.x` is 4, and was 3 when this program was made"]),
        ("m.A 1\nm.A:x 3", "m.A 2\nm.A:x 3", ["the class `m.A` is 2, and was 1 when this program was made"]),
        ("m.A 1\nm.A:x 3", "m.A 2", ["`m.A.x` is absent, and was 3 when this program was made"]),
        (
            f"m.A 1\nm.A:f <function m.A.f {ONE}>\nm.B 1",
            f"m.A 2\nm.A:f <function m.A.f {OTHER}>\nm.B 2",
            [
                "`m.A.f` is not what it was when this program was made",
                "the class `m.B` is 2, and was 1 when this program was made",
            ],
        ),
    ],
)
def test_of_a_class_the_attribute_is_named(before, after, said):
    assert [each.sentence for each in compare_program_keys({"classes": before}, {"classes": after})] == said


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (SILU, "/home/me/model.py:31: return F.silu(x) * self.scale"),
        ("layers.0.scale", "/home/me/model.py:31: return F.silu(x) * self.scale"),
        ("mine:unsilu", "/home/me/model.py:40: return unsilu(x)"),
        ("t281", None),
        ("lu", None),
        ("", None),
    ],
)
def test_the_line_of_source_that_says_a_name(name, line):
    assert find_source_line(TRACE, name) == line
