"""The table of Thunder's patches: each row fits, and a row that does not fit replaces nothing."""

import importlib
import inspect
import sys
from dataclasses import replace
from functools import wraps
from types import FunctionType, ModuleType

import pytest
from replaced_functions import original

from fusioncache.thunder_adapter import installation
from fusioncache.thunder_adapter.installation import Patch, PatchGroup, digest_source, find_misfit, list_patches

GROUPS = {name: group for name, group in list_patches().items() if name != "vector probes"}
"""Without the group that tests of this repository replace."""
ROWS = [row for group in GROUPS.values() for row in group.rows]


def shorten_more(function):
    return lambda: f"more {function()}"


@pytest.fixture
def home(monkeypatch):
    """Yields a module with one function."""
    module = ModuleType("thunder.home")
    module.original = original
    monkeypatch.setitem(sys.modules, "thunder.home", module)
    installation.uninstall()
    yield module
    installation.uninstall()


@pytest.fixture
def install(home, monkeypatch):
    """Returns a function that makes these rows the whole table, and installs them."""

    def install_rows(*rows, whole=False):
        monkeypatch.setattr(installation, "list_patches", lambda: {"tried": PatchGroup("tried", whole, "", rows)})
        installation.uninstall()
        installation.install_more("tried")

    return install_rows


ROW = Patch("thunder.home:original", (digest_source(original),), "replaced_functions:shorten", False, False)
MORE = replace(ROW, maker=f"{__name__}:shorten_more", around=True)
OTHER = replace(ROW, digests=("of another version",))
GONE = replace(ROW, original="thunder.home:gone")


def test_each_row_fits_and_has_a_maker():
    installation.uninstall()
    misfits = list(map(find_misfit, ROWS))
    installation.install()
    misfits += map(find_misfit, ROWS)  # also where replacements are installed
    installation.uninstall()
    assert not any(misfits), misfits
    for row in ROWS:
        assert all(len(digest) == 16 and int(digest, 16) for digest in row.digests)
        module, _, name = row.maker.partition(":")
        assert not name or callable(getattr(importlib.import_module(module), name))


def read_all():
    """Returns the current value at the place of each row in Thunder."""
    places = [row.locate() for row in ROWS if row.maker and not row.is_idle]
    return [holder[name] if isinstance(holder, dict) else vars(holder)[name] for holder, name in places]


def test_uninstall_puts_back_what_each_row_replaces():
    installation.uninstall()
    before = read_all()
    installation.install()
    installed = read_all()
    installation.uninstall()
    assert sum(now is not own for now, own in zip(installed, before, strict=True)) > len(before) / 2
    assert all(now is own for now, own in zip(read_all(), before, strict=True))


WRITTEN = """def written(x, y=1):
    def inner():
        return x + 1

    x = inner()
    return max(
        x,
        y + 1,
    )


def beside(x):
    return x
"""
CHANGES = {
    "the first line": ("y=1", "y=2"),
    "a line between": ("x = inner()", "x = inner() "),
    "the last line of a function in it": ("return x + 1", "return x + 2"),
    "the last line but one": ("y + 1,", "y + 2,"),
    "the last line": ("    )", "    ) + 1"),
    "lines behind it": ("    )", "    )\n    # returned\n    return 0"),
    "a comment behind it": ("    )\n", "    )\n\n# of the next function\n"),
    "what comes behind it": ("    return x\n", "    return y\n"),
}
"""Changes of one function's file, each alone."""
_BEHIND = {"a comment behind it", "what comes behind it", "lines behind it"}
"""Changes that are not in the running function: Python omits code behind a ``return``."""


def compile_written(folder, text):
    file = folder / f"text_{len(list(folder.iterdir()))}.py"
    file.write_text(text)
    names = {}
    exec(compile(text, str(file), "exec"), names)
    return names["written"]


def test_a_source_ends_with_the_last_line_of_its_code_and_of_what_is_in_it(tmp_path):
    written = compile_written(tmp_path, WRITTEN)
    without = FunctionType(written.__code__.replace(co_linetable=b"", co_consts=()), {})
    for function in (written, without):  # Python may run without positions
        assert installation.read_source(function) == inspect.getsource(written)
    with pytest.raises(OSError):
        installation.read_source(FunctionType(written.__code__.replace(co_filename="gone.py"), {}))


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_function_is_another_source(tmp_path, change):
    before, after = WRITTEN, WRITTEN.replace(*CHANGES[change], 1)
    digests = {digest_source(compile_written(tmp_path, text)) for text in (before, after)}
    assert (len(digests) == 1) is (change in _BEHIND)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_row_that_fits_is_installed_and_removed_and_may_wait_for_its_module(home, install, loaded):
    row = replace(ROW, loaded=loaded)
    absent = replace(row, original="antigravity:fly")  # a module that nothing imports
    install(row, *[absent] * loaded)
    assert home.original() == "shortened original"
    installation.uninstall()
    assert home.original is original
    assert not loaded or find_misfit(absent) is None
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("row", "reason"),
    [(OTHER, "thunder.home:original has another source"), (GONE, "Thunder has no thunder.home:gone")],
)
def test_a_row_that_does_not_fit_replaces_nothing_nor_do_those_that_need_it(home, install, row, reason):
    assert find_misfit(row) == reason
    install(row)
    assert home.original is original
    install(row, MORE)
    assert home.original() == "more original"
    install(ROW, row, whole=True)
    assert home.original is original
    install(ROW, replace(row, maker=""))
    assert home.original is original


@pytest.mark.parametrize("before", [True, False])
def test_a_function_that_other_code_wrapped_is_not_replaced(home, install, before):
    if not before:
        install(ROW)

    @wraps(home.original)
    def theirs():
        return "theirs"

    home.original = theirs
    install(ROW)
    assert home.original is theirs


def test_a_line_is_read():
    line = "thunder.home:original  0123456789abcdef  shorten  everywhere  around"
    (group,) = installation.read_table(f"# text\n\n[name] folder.module whole needs other\n# text\n{line}\n\n")
    maker = "folder.module:shorten"
    row = Patch("thunder.home:original", ("0123456789abcdef",), maker, True, True)
    assert group == PatchGroup("name", True, "other", (row,))
