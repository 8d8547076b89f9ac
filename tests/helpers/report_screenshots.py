"""Takes the pictures of the report in docs: ``PYTHONPATH=.:tests/helpers python tests/helpers/report_screenshots.py``.

Needs a Chromium on the PATH, and playwright, of the dev extra.
"""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from changed_layer import save_changed_llama
from PIL import Image
from playwright.sync_api import sync_playwright
from report_records import read_newest
from repository import DOCS

from fusioncache.cli.report import render_report

ODD = "#c10"
"""The first norm of the layer that was changed."""
PICTURES = (("report-wide-light.png", 1240, 1400, 1.5, "light"), ("report-narrow-dark.png", 360, 1640, 2, "dark"))
"""File, width and height of the page, pixels for each of its own, theme."""


def main() -> None:
    """Trains the model with one changed layer, and photographs its report with the odd cell looked at."""
    with TemporaryDirectory() as directory, sync_playwright() as playwright:
        os.environ["FUSIONCACHE_DIR"] = directory
        save_changed_llama()
        page_file = Path(directory, "report.html")
        page_file.write_text(render_report(read_newest()), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, width, height, scale, theme in PICTURES:
            size = {"width": width, "height": height}
            page = browser.new_page(
                viewport=size, device_scale_factor=scale, color_scheme=theme, reduced_motion="reduce"
            )
            page.goto(page_file.as_uri())
            page.focus(ODD)
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=DOCS / name)
            # Few colours are enough, and take a third of the bytes.
            Image.open(DOCS / name).convert("RGB").quantize(128).save(DOCS / name, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
