"""What the documents name is there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kit.features import ROOT
from leeward.daemon.config import Config

PAGES = sorted(str(path.relative_to(ROOT)) for path in (
    *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests/escapes/CATALOGUE.md"))
#: The list of pages for models.
LLMS = "docs/llms.txt"


def links(page: str) -> set[tuple[str, str]]:
    """Where the links of *page* into this tree lead, each with its anchor or ""."""
    found = set()
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, anchor = target.partition("#")
        if "://" not in target:
            found.add((os.path.normpath(os.path.join(os.path.dirname(page), path) if path else page), anchor))
    return found


def anchors(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, LLMS])
def test_every_link_leads_somewhere(page: str):
    for path, anchor in links(page):
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors(path), (path, anchor)


def test_the_map_leads_to_every_page():
    """Decisions by their folder, and the tests' catalogue with them."""
    led = {path for path, _ in links("docs/index.md")}

    assert {page for page in PAGES if not page.startswith("docs/decisions/")} - {"docs/index.md"} <= led
    assert "docs/decisions" in led
    assert "docs/index.md" in {path for path, _ in links("README.md")}


def test_the_first_version_is_told_by_what_it_can_do():
    """Nobody has used what was mended or changed before it."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## .+$", text, re.MULTILINE)

    if versions == ["## 0.1.0, unreleased"]:
        assert text.count("\n") <= 60
        assert not re.search(r"^### (Security|Removed|Changed|Fixed)$", text, re.MULTILINE)


def test_each_decision_has_a_number_of_its_own():
    numbers = [page.name[:4] for page in ROOT.glob("docs/decisions/0*.md")]
    assert sorted(set(numbers)) == sorted(numbers)


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/decisions/0*.md")), ids=lambda page: page.name)
def test_a_decision_says_what_holds_in_half_a_page(page: Path):
    """docs/decisions/index.md says how one is written."""
    lines = page.read_text().splitlines()

    assert lines[0].startswith(f"# {page.name[:4]}: ")
    assert len(lines) <= 40
    assert not re.search(r"^(Status|History):|20[0-9]{2}-[0-9]{2}-[0-9]{2}", page.read_text(), re.MULTILINE)
    assert f"| [{page.name[:4]}]({page.name}) | {lines[0][8:]} |" in (page.parent / "index.md").read_text()


#: A file of the tree by its last folders, as pages and comments name it.
FILE = re.compile(r"(?<![\w/.-])((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|[ch]))\b")


@pytest.mark.thorough
def test_every_file_that_is_named_is_there():
    """By pages, and by the comments and docstrings of the product: names of files change."""
    files = [str(path.relative_to(ROOT)) for folder in ("bench", "cli", "docs", "examples", "leeward", "packaging", "tests")
             for path in (ROOT / folder).rglob("*.*")]
    ends = {path[start.end():] for path in files for start in re.finditer("^|/", path)}
    rooms = {Path(path).parent.name for path in files if path.startswith(("leeward/", "cli/"))} - {"src"}
    said = [(path, name) for path in files if path.endswith((".md", ".py", ".c", ".h")) and "/sdk/" not in path
            and not path.startswith(("docs/measurements", "tests/")) for name in FILE.findall((ROOT / path).read_text())
            if Path(name).parent.name in rooms]

    assert [] == [(path, name) for path, name in said if name not in ends]
    assert len(said) > 100


@pytest.mark.parametrize("page", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")))
def test_every_test_file_that_a_page_names_exists(page: str):
    named = set(re.findall(r"tests/[a-z_/]+\.py", (ROOT / page).read_text()))

    assert set() == {path for path in named if not (ROOT / path).is_file()}


def test_every_test_that_the_page_on_reliability_names_is_there():
    named = re.findall(r"`([a-z_/]+\.py)(?:::(test_\w+))?`", (ROOT / "docs/reliability.md").read_text())

    assert 40 < sum(bool(function) for _, function in named)
    for path, function in named:
        file = ROOT / path if "/" in path and (ROOT / path).exists() else ROOT / "tests" / path
        if not file.exists():
            file = ROOT / "tests/integration" / path  # named behind another one of its folder
        assert f"\ndef {function}" in file.read_text(), (path, function)


def test_readme_and_dev_name_the_same_duration_of_the_tests():
    """README.md says what ./dev says."""
    takes = re.findall(r"^(?:whole|quick)_takes='(.+)'$", (ROOT / "dev").read_text(), re.MULTILINE)
    text = " ".join((ROOT / "README.md").read_text().split())

    assert 2 == len(takes)
    assert all(each in text for each in takes)


def test_the_bounds_of_sessions():
    """docs/sessions.md has the defaults of the configuration."""
    page, config = (ROOT / "docs/sessions.md").read_text(), Config()

    assert f"| seconds without a job | {config.session_idle:g} |" in page
    assert f"| seconds from its opening to its end | {config.session_lifetime:g} |" in page
    assert f"| sessions of one connection | {config.connection_sessions} |" in page
    assert -1 == config.max_sessions
