"""The README says what the committed results say."""

from __future__ import annotations

import pytest

from benchmarks.figures import make, numbers, readme


def test_the_readme_shows_the_committed_results():
    text = make.README.read_text()
    assert readme.filled(text, make.figures()) == text, "run make figures"


def test_a_block_is_filled_and_the_rest_stays():
    text = "a\n<!-- figure: x -->\nold\n<!-- end of figure -->\nb\n"
    assert readme.filled(text, {"x": "| 1 |\n"}) == "a\n<!-- figure: x -->\n| 1 |\n<!-- end of figure -->\nb\n"
    assert readme.filled(readme.filled(text, {"x": "new\n"}), {"x": "old\n"}) == text


@pytest.mark.parametrize("figures", [{}, {"x": "", "y": ""}])
def test_a_block_without_a_figure_and_a_figure_without_a_block_are_refused(figures):
    with pytest.raises(ValueError, match=r"no figure or no place for (x|y)"):
        readme.filled("<!-- figure: x -->\n<!-- end of figure -->", figures)


def test_a_table_aligns_numbers_to_the_right():
    assert readme.table(("<name", "count"), [["a", "1"]]) == "| name | count |\n| --- | ---: |\n| a | 1 |\n"


def test_seconds_have_three_digits():
    assert [numbers.seconds(value) for value in (0.5, 9.87, 37.18, 284.6)] == ["0.50", "9.87", "37.2", "285"]
