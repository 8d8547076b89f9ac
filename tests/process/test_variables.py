"""Every variable of fusioncache is a setting, is documented, and refuses invalid values."""

import re
from pathlib import Path

import pytest
from repository import PACKAGE, ROOT

from fusioncache.process import settings
from fusioncache.process.settings import EXPLAIN, JOBS, LOG, STORE, VERIFY, Setting

SETTINGS = [value for value in vars(settings).values() if isinstance(value, Setting)]
NAMES = {setting.name for setting in SETTINGS}


def _own_variables(*paths: Path) -> set[str]:
    return {name for path in paths for name in re.findall(r"\bFUSIONCACHE_[A-Z_]+\b", path.read_text())}


def test_the_package_names_no_other_variable_and_every_one_is_documented():
    assert _own_variables(*PACKAGE.rglob("*.py")) == _own_variables(ROOT / "docs" / "options.md") == NAMES


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        (STORE, "yes", "FUSIONCACHE_STORE must be 0 or 1, got 'yes'"),
        (EXPLAIN, "2", "FUSIONCACHE_EXPLAIN must be 0 or 1, got '2'"),
        (VERIFY, "every", "FUSIONCACHE_VERIFY must be 0, 1 or all, got 'every'"),
        (JOBS, "-1", "FUSIONCACHE_JOBS must be a number of processes, 0 or more, got '-1'"),
        (JOBS, "9" * 10, "FUSIONCACHE_JOBS must be a number of processes, 0 or more, got '9999999999'"),
        (LOG, "1", "FUSIONCACHE_LOG must be stderr, stdout or a file, such as ./1, got '1'"),
        (LOG, "-", "FUSIONCACHE_LOG must be stderr, stdout or a file, such as ./1, got '-'"),
    ],
)
def test_a_variable_refuses_what_it_cannot_be(monkeypatch, setting, text, message):
    monkeypatch.setenv(setting.name, text)
    with pytest.raises(ValueError) as raised:
        setting.get_text()
    assert str(raised.value) == message


def test_a_variable_that_is_empty_or_not_set_says_nothing(monkeypatch):
    for setting in SETTINGS:
        monkeypatch.setenv(setting.name, "")
        assert setting.get_text() == ""
        monkeypatch.delenv(setting.name)
        assert setting.get_text() == ""
