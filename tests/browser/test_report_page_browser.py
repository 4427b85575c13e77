"""The doctor's page in a real browser: it fits phone and desktop, loads nothing, filters work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.report.page import render_page
from tests.conftest import missing
from tests.unit import report_samples as samples

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")
SAMPLES = {
    "eight-gpus": samples.eight_gpus,
    "faulty": samples.faulty,
    "hostile": samples.hostile,
    "no-gpu": samples.nothing,
}
every_sample = pytest.mark.parametrize("name", SAMPLES)
SMALLEST_LETTERS = """
() => Math.min(...[...document.querySelectorAll('svg text')].map(
    text => parseFloat(getComputedStyle(text).fontSize)
            * text.ownerSVGElement.getBoundingClientRect().width
            / text.ownerSVGElement.viewBox.baseVal.width))
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    if not CHROMIUM.exists():
        missing("Chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield running
        running.close()


class Opened:
    """One page in one window, and everything it complained of or asked for."""

    def __init__(self, browser: Any, path: Path, *, width: int, scripts: bool = True) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, java_script_enabled=scripts
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    opened: list[Opened] = []

    def open_one(name: str, *, width: int, scripts: bool = True) -> Opened:
        path = tmp_path / f"{name}.html"
        path.write_text(render_page(SAMPLES[name]()), encoding="utf-8")
        opened.append(Opened(browser, path, width=width, scripts=scripts))
        folder = os.environ.get("TEST_SCREENSHOTS")
        if folder:
            picture = Path(folder) / f"doctor-{name}-{width}.png"
            opened[-1].page.screenshot(path=str(picture), full_page=True)
        return opened[-1]

    yield open_one
    for each in opened:
        each.context.close()


@every_sample
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_page_fits_the_width_and_asks_for_nothing(open_page: Any, name: str, width: int) -> None:
    opened = open_page(name, width=width)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []
    assert len(opened.requests) == 1
    assert page.locator("script").count() == 0


def test_pictures_can_be_read_on_a_phone(open_page: Any) -> None:
    page = open_page("eight-gpus", width=390).page
    assert page.locator("svg").count() == 6
    assert page.evaluate(SMALLEST_LETTERS) >= 8.0


def test_filters_work_without_scripts(open_page: Any) -> None:
    page = open_page("faulty", width=1280, scripts=False).page
    rows = page.locator(".row")
    assert rows.count() == 18

    def shown() -> int:
        return sum(rows.nth(number).is_visible() for number in range(rows.count()))

    assert shown() == 18
    page.locator("label[for=f-fail]").click()
    assert shown() == 2
    assert page.locator(".group:visible h3").count() == 1
    page.locator("label[for=f-skip]").click()
    assert shown() == 1
    page.locator("label[for=f-all]").click()
    assert shown() == 18


def test_filters_work_with_the_keyboard(open_page: Any) -> None:
    page = open_page("faulty", width=1280, scripts=False).page
    page.locator("#f-all").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#f-fail").is_checked()


def test_numbers_of_a_picture_open_without_scripts(open_page: Any) -> None:
    page = open_page("eight-gpus", width=390, scripts=False).page
    first = page.locator("figure details").first
    assert not first.locator("table").is_visible()
    first.locator("summary").click()
    assert first.locator("table").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Any, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(render_page(samples.faulty()), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(path.as_uri())
    ground = _brightness(page, "body", "backgroundColor")
    for selector in ("body", ".soft", ".verdict h1", ".cause .what", ".row.s-skip"):
        contrast = _contrast(_brightness(page, selector, "color"), ground)
        assert contrast >= 4.5, f"{selector}: {contrast:.1f}"
    context.close()


def _brightness(page: Any, selector: str, key: str) -> float:
    script = f"getComputedStyle(document.querySelector('{selector}')).{key}"
    numbers = page.evaluate(script).removeprefix("rgb(").rstrip(")").split(",")
    linear = []
    for number in numbers[:3]:
        part = float(number) / 255
        linear.append(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(first: float, second: float) -> float:
    high, low = max(first, second), min(first, second)
    return (high + 0.05) / (low + 0.05)
