"""Finding a template in the record, by the start of its name or digest."""

from __future__ import annotations

from recorded_templates import make_cast_template, make_chain_template, make_full_ledger, make_ledger, save_ledger

from fusioncache.record.reader import RecordReader


def _save_named(monkeypatch, *names: str) -> None:
    templates = (make_cast_template(name, options=str(number)) for number, name in enumerate(names))
    save_ledger(monkeypatch, make_ledger(*templates))


def _names(prefix: str) -> set[str]:
    return {template.name for template in RecordReader().find(prefix)}


def test_find_by_the_start_of_a_name(monkeypatch):
    _save_named(monkeypatch, "sum_one", "sum_two", "tanh")
    assert _names("sum") == {"sum_one", "sum_two"}
    assert _names("sum_t") == {"sum_two"}
    assert _names("um") == set()


def test_find_by_the_start_of_a_digest(monkeypatch):
    save_ledger(monkeypatch, make_full_ledger())
    chain, cast = make_chain_template(), make_cast_template()
    for template in (chain, cast):
        for length in (12, 64):
            assert _names(template.key.digest[:length]) == {template.name}
        assert _names(template.key.digest[1:]) == set()


def test_find_takes_the_whole_name_before_its_longer_siblings(monkeypatch):
    _save_named(monkeypatch, "sum", "sum_two")
    assert _names("sum") == {"sum"}


def test_find_takes_the_whole_digest_before_names(monkeypatch):
    digest = make_chain_template().key.digest
    save_ledger(monkeypatch, make_ledger(make_chain_template(), make_cast_template(name=f"{digest}_two")))
    assert _names(digest) == {make_chain_template().name}


def test_find_knows_no_wildcards_and_no_other_case(monkeypatch):
    _save_named(monkeypatch, "sum_one", "sumXtwo")
    assert _names("%") == _names("s%") == _names("SUM") == set()
    assert _names("sum_") == {"sum_one"}


def test_find_gives_the_counts_of_the_newest_run_that_had_the_template(monkeypatch):
    chain, cast = make_chain_template(), make_cast_template()
    save_ledger(monkeypatch, make_ledger(chain, seconds=2.0), run="m", started=20.0)
    save_ledger(monkeypatch, make_ledger(chain, seconds=1.0), run="a", started=10.0)
    save_ledger(monkeypatch, make_ledger(chain, seconds=3.0), run="z", started=15.0)
    save_ledger(monkeypatch, make_ledger(cast), run="n", started=30.0)
    (found,) = RecordReader().find(chain.key.digest)
    assert found.compile_seconds == 2.0
