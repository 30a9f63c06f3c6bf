"""Pages for readers: links lead somewhere, no page is too long, and the version is the same everywhere."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GENERATED = {"settings.md", "json.md"}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LONGEST = 15_360
"""Bytes of a page."""


def anchors(page: Path) -> set[str]:
    """Names of the places of a page: those that it sets, and its headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    named = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return named | set(re.findall(r'<a id="([^"]+)">', page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def test_pages_written_by_hand_fit_a_head() -> None:
    sizes = {str(page.relative_to(ROOT)): page.stat().st_size for page in PAGES if page.name not in GENERATED}
    assert {name: size for name, size in sizes.items() if size > LONGEST} == {}
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"## [{version}] - " in (ROOT / "CHANGELOG.md").read_text()
