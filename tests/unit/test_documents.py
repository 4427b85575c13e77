"""What README, docs and Makefile point at is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_readme_names_every_page() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    pages = {f"docs/{page.name}" for page in (REPOSITORY / "docs").glob("*.md")}
    assert pages == set(re.findall(r"\]\((docs/[\w-]+\.md)\)", readme))


@pytest.mark.parametrize("page", [REPOSITORY / "Makefile", *PAGES], ids=lambda page: page.name)
def test_programs_that_are_named_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in set(re.findall(r"\b(?:scripts|benchmarks)/[\w-]+\.(?:py|sh)\b", text)):
        assert (REPOSITORY / path).is_file(), path


def test_every_target_that_is_named_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"`make ([a-z]+)`|^\$ make ([a-z]+)", page.read_text(), re.MULTILINE)
        assert {one or other for one, other in named} <= targets, page.name
