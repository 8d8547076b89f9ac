"""Random single changes of a model and of what it calls: no program is loaded that Thunder would not derive then."""

import pytest
from random_mutations import run_changes

COUNT = 6
"""Of changes for each seed: each takes a second. ``tests/helpers/random_mutations.py`` tries as many as wanted."""


@pytest.mark.parametrize("seed", [1, 2])
def test_no_program_is_loaded_wrongly_after_a_random_change(seed, tmp_path):
    outcomes = [(change.text, outcome) for change, outcome in run_changes(seed, COUNT, tmp_path)]
    assert [(text, outcome.wrong) for text, outcome in outcomes if outcome.wrong] == []
    (_, before), *changed, (_, after) = outcomes
    assert (before.what, before.refused, after.what) == ("derived", (), "loaded")
    assert sum(outcome.what == "derived" and not outcome.refused for _, outcome in changed) >= COUNT / 2
