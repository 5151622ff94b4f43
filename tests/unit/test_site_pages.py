"""Links of the site's pages: docs/site_pages.py writes them anew where a page isn't where its file is."""

from __future__ import annotations

import runpy

import pytest

from kit.features import ROOT

relinked = runpy.run_path(str(ROOT / "docs/site_pages.py"))["relinked"]


@pytest.mark.parametrize(("page", "text", "expected"), [
    ("wire.md", "[the README](../README.md#try-it)", "[the README](readme.md#try-it)"),
    ("languages/c.md", "[the API](../c-api.md)", "[the API](../c-api.md)"),
    ("languages/c.md", "[holes](../../SECURITY.md)", "[holes](../security.md)"),
    ("readme.md", "[`wire`](docs/wire.md#frames)", "[`wire`](wire.md#frames)"),
    ("attacks.md", "[model](../../docs/threat-model.md)", "[model](threat-model.md)"),
    ("architecture.md", "[all](decisions/)", "[all](decisions/index.md)"),
    ("readme.md", "[MIT](LICENSE)", "MIT"),
    ("attacks.md", "[`policy`](../kit/lock_policy.py)", "`policy`"),
    ("wire.md", "[nothing](nowhere.md)", "[nothing](nowhere.md)"),
    ("wire.md", "[nothing](../nowhere.py)", "[nothing](../nowhere.py)"),
    ("wire.md", "[place](#frames), [elsewhere](https://example.org/a)",
     "[place](#frames), [elsewhere](https://example.org/a)"),
    ("wire.md", "`[code](../README.md)`\n```\n[code](../README.md)\n```\n",
     "`[code](../README.md)`\n```\n[code](../README.md)\n```\n"),
])
def test_a_link_leads_to_the_page_of_its_file(page: str, text: str, expected: str):
    assert expected == relinked(text, page)
