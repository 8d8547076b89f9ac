"""Random single changes of a model and of what it calls: no program is loaded that Thunder would not derive then."""

from random_mutations import run_changes

SEED, COUNT = 1, 4
"""Of changes: each takes a second. ``tests/helpers/random_mutations.py`` tries as many as wanted, of any seed."""


def test_no_program_is_loaded_wrongly_after_a_random_change(tmp_path):
    outcomes = [(change.text, outcome) for change, outcome in run_changes(SEED, COUNT, tmp_path)]
    assert [(text, outcome.wrong) for text, outcome in outcomes if outcome.wrong] == []
    (_, before), *changed, (_, after) = outcomes
    assert (before.what, before.refused, after.what) == ("derived", (), "loaded")
    assert sum(outcome.what == "derived" and not outcome.refused for _, outcome in changed) >= COUNT / 2
