"""The documentation as a site: mkdocs builds it without a warning, and each link leads somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import leeward
from kit.features import ROOT
from kit.loopback import serving_files

pytestmark = pytest.mark.needs("mkdocs")


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `./dev docs` runs, into the folder *site*."""
    return subprocess.run(
        [ROOT / ".venv-docs/bin/python", "-m", "mkdocs", "build", "--strict", "--site-dir", site], cwd=source,
        text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, check=False, timeout=100)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    got = build(ROOT, folder)
    assert 0 == got.returncode, got.stderr
    return folder


def test_the_reference_has_every_public_name(site):
    page = (site / "reference/python.html").read_text()

    named = set(re.findall(r'id="leeward\.(?:\w+\.)*(\w+)"', page))

    assert set(leeward.__all__) <= named
    assert {"execute", "session", "interrupt", "stdout_text"} <= named


def test_the_site_fetches_no_external_resource(site):
    fetched = (r'<(?:script|img|iframe)[^>]*\bsrc="(https?:|//)'
               r'|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(https?:|//)')

    assert [] == [page.name for page in site.rglob("*.html") if re.search(fetched, page.read_text())]


def test_models_find_the_text_of_the_pages(site):
    named = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())

    assert 15 < len(named) == len(set(named))
    assert [] == [page for page in named if not (site / page).is_file()]


@pytest.mark.needs("chromium")
def test_the_search_finds_commands_and_headings(site):
    """Where the site is served, since browsers start no worker for a page that is a file. Nothing comes from elsewhere."""
    from kit.approvals_browser import chromium  # only where there is one

    asked = list[str]()
    with serving_files(site) as port, chromium() as browser:
        top = f"http://127.0.0.1:{port}/"
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{top}start.html")
        for words, found in (("bug-report", "start.html"), ("grade a student", "cookbook.html#grade-a-student")):
            page.locator("input.md-search__input").fill("")
            page.locator("input.md-search__input").press_sequentially(words)  # it listens to keys alone
            page.locator(f".md-search-result__link[href*='{found}']").first.wait_for()
    assert f"{top}search/search_index.json" in asked
    assert [] == [url for url in asked if not url.startswith((top, "data:", "blob:"))]


def test_a_page_that_is_broken_stops_the_build(tmp_path):
    """
    A link to a page, a heading or a name that isn't there; a page that the navigation lacks. In one build: each takes
    seconds.
    """
    broken = {
        ("wire.md", "[a page](nowhere.md)"): "nowhere.md",
        ("kernel.md", "[a place](wire.md#nowhere)"): "#nowhere",
        ("reference/python.md", "[a name][leeward.Nowhere]"): "leeward.Nowhere",
        ("unlisted.md", "In no list of pages."): "unlisted.md",
    }
    source = tmp_path / "source"
    shutil.copytree(ROOT / "docs", source / "docs")
    shutil.copytree(ROOT / "leeward", source / "leeward", ignore=shutil.ignore_patterns("*.so", "sdk", "__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", source)
    for page, text in broken:
        with open(source / "docs" / page, "a") as file:
            file.write(f"\n{text}\n")

    got = build(source, tmp_path / "site")

    assert 0 != got.returncode
    for complaint in broken.values():
        assert complaint in got.stderr
