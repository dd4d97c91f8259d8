"""Write docs/images/report.png, the README's picture: the first screen of a report.

python scripts/make_screenshot.py REPORT.html

Needs Chromium, which playwright does not install here: `apt-get install chromium fonts-dejavu-core`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.png"


def main(report: str) -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 770}, color_scheme="light")
        page.goto(Path(report).resolve().as_uri())
        page.wait_for_timeout(1500)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
