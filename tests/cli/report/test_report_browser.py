"""The report in a real browser: opened, clicked through, and moved through by keyboard."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from changed_layer import CHANGED_LAYER, train_llama
from golden_states import record_long_runs
from report_records import read_newest, save_hostile_run

from fusioncache.cli.report import render_report

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")
_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(_CHROMIUM is None, reason="needs a chromium on the PATH")

_ARGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
_ARGS += "--disable-component-update --disable-sync"
_ODD = "#c10"
"""The first norm of the layer that was changed."""
_NARROW = 360


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_ARGS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIONCACHE_DIR", str(tmp_path_factory.mktemp("record")))
        train_llama(CHANGED_LAYER)
        path = tmp_path_factory.mktemp("report") / "report.html"
        path.write_text(render_report(read_newest()), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser) -> Iterator:
    """Opens a file. When the test ends, nothing may have gone wrong in it and nothing been asked of any network."""
    wrong: list[str] = []
    contexts = []

    def visit(path: Path, width: int = 1280, **options):
        contexts.append(
            browser.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce", **options)
        )
        page = contexts[-1].new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not wrong


def open_all(page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")


def width_of(page) -> int:
    return page.evaluate("document.documentElement.scrollWidth")


def focused(page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.parentElement.id")


def test_from_the_map_to_a_template_to_its_region_and_back(visit, file):
    page = visit(file)
    odd = page.locator(_ODD)
    assert "once" in odd.get_attribute("class") and odd.get_attribute("aria-label").startswith(
        "transformer.h.2, norm_1, forward"
    )
    others = [page.locator(f"#c{number}").inner_text() for number in (5, 15)]  # the same norm of layers 1 and 3
    assert others[0] == others[1] != odd.inner_text()
    odd.click()
    template = page.locator(":target")
    assert template.get_attribute("open") is not None and template.locator("svg.fc-graph").is_visible()
    assert "add 0.0003" in template.locator("svg.fc-graph").text_content()
    template.get_by_role("link", name="Fusion10").click()
    assert (page.url.rpartition("#")[2], focused(page)) == ("c10", "c10")
    page.go_back()
    assert page.locator(":target").get_attribute("id") == template.get_attribute("id")


def test_the_panel_tells_what_a_cell_is_and_why_it_is_new(visit, file):
    page = visit(file)
    page.hover(_ODD)
    text = " ".join(page.locator("#panel").inner_text().split())
    assert text.startswith("transformer.h.2, norm_1, forward template")
    assert "module transformer.h.2.norm_1" in text and "outcome miss" in text
    assert re.search(r"source litgpt/model.py:\d+", text)
    assert "They differ in a constant" in text and "0.0003 here, 1e-05 there" in text
    page.hover("#c5")
    assert page.locator(".map .same").count() == 7


def test_the_keyboard_moves_in_the_map(visit, file):
    page = visit(file)
    page.focus("#c0")
    for key, cell in (
        *(("ArrowRight", "c1"), ("ArrowDown", "c6"), ("ArrowDown", "c11"), ("ArrowLeft", "c10"), ("ArrowLeft", "c10")),
        *(("End", "c31"), ("Home", "c10"), ("ArrowUp", "c5")),
    ):
        page.keyboard.press(key)
        assert focused(page) == cell, key
    assert page.evaluate("[...document.querySelectorAll('.map .cell')].filter(cell => cell.tabIndex === 0).length") == 1
    page.keyboard.press("Enter")
    sync_api.expect(page.locator(".template:target > summary")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.locator(":target").get_attribute("open") is None


@pytest.mark.parametrize("width", [_NARROW, 1280])
def test_nothing_reaches_over_the_side_nor_do_long_names_and_a_long_account(visit, file, tmp_path, monkeypatch, width):
    page = visit(file, width)
    open_all(page)
    assert width_of(page) == width
    page.hover(_ODD)
    assert width_of(page) == width
    assert page.evaluate("document.querySelector('.map').scrollWidth > 100")
    record_long_runs(monkeypatch)
    path = tmp_path / "long.html"
    path.write_text(render_report(read_newest()), encoding="utf-8")
    page = visit(path, width)
    open_all(page)
    assert width_of(page) == width
    assert page.locator("h1").inner_text().count("Multimodal") == 1 and page.locator("#not-given").is_visible()


def test_it_can_be_read_without_its_script(visit, file):
    page = visit(file, java_script_enabled=False)
    assert not page.locator("#theme").is_visible() and not page.locator("#panel").is_visible()
    assert page.locator(".map .cell").count() == 42


def test_a_text_that_is_out_to_do_harm_does_none(visit, tmp_path, monkeypatch):
    path = tmp_path / "hostile.html"
    path.write_text(render_report(save_hostile_run(monkeypatch)), encoding="utf-8")
    page = visit(path, _NARROW)
    open_all(page)
    for cell in page.locator(".map .cell").all():
        cell.focus()
    assert "<script>alert(1)</script>" in page.locator("#panel").inner_text()
    assert width_of(page) == _NARROW
