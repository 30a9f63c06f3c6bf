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
"""Bytes of a page on one subject."""


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
    subjects = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED]
    assert {page.name: size for page in subjects if (size := page.stat().st_size) > LONGEST} == {}
    for name, most in {"README.md": 130, "ARCHITECTURE.md": 220}.items():
        assert len((ROOT / name).read_text().splitlines()) <= most, name


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"## [{version}] - " in (ROOT / "CHANGELOG.md").read_text()
