"""The documents say what the committed results say."""

import pytest

from benchmarks.figures import make, markdown, steps


def test_the_documents_show_the_committed_results():
    texts = {path: path.read_text() for path in make.DOCUMENTS}
    assert markdown.fill(texts, make.make_figures()) == texts, "run make figures"


def test_a_block_is_filled_and_the_rest_stays():
    text = "a\n<!-- figure: x -->\nold\n<!-- end of figure -->\nb\n"
    texts = {"one": text, "other": "c\n"}
    found = markdown.fill(texts, {"x": "| 1 |\n"})
    assert found == {"one": "a\n<!-- figure: x -->\n| 1 |\n<!-- end of figure -->\nb\n", "other": "c\n"}
    assert markdown.fill(found, {"x": "old\n"}) == texts


@pytest.mark.parametrize("figures", [{}, {"x": "", "y": ""}])
def test_a_block_without_a_figure_and_a_figure_without_a_block_are_refused(figures):
    with pytest.raises(ValueError, match=r"no figure or no place for (x|y)"):
        markdown.fill({"one": "<!-- figure: x -->\n<!-- end of figure -->"}, figures)


def test_a_table_aligns_numbers_to_the_right():
    assert markdown.make_table(("<name", "count"), [["a", "1"]]) == "| name | count |\n| --- | ---: |\n| a | 1 |\n"


def test_seconds_have_three_digits():
    assert [markdown.format_seconds(value) for value in (0.5, 9.87, 37.18, 284.6)] == ["0.50", "9.87", "37.2", "285"]


def test_steps_of_several_results_are_in_a_table_for_each_setting():
    numbers = dict.fromkeys(("step_ms", "fastest_ms", "bytes_peak", "first_step"), 2.0)
    rank = {**numbers, "compiles": 3, "timeline": dict.fromkeys(("communication", "exposed", "idle"), 1e3)}
    shallow = {"peer": "ddp", "layers": 8, "tokens": 512, "ranks": [rank, rank]}
    slow = {**shallow, "variables": {"NCCL_P2P_DISABLE": "1"}}
    failed = {**shallow, "error": "no time was left"}
    results = [{"points": [shallow, failed]}, {"points": [slow, shallow]}]
    text = steps.tabulate_shared_steps(*results)
    assert [line for line in text.splitlines() if line.endswith(":")] == [
        "8 layers, 512 tokens:",
        "8 layers, 512 tokens, NCCL_P2P_DISABLE=1:",
    ]
    assert text.count("| ddp | 2.0 ms |") == 3
    assert "layers" not in steps.tabulate_shared_steps(results[0])
