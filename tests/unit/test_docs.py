"""
What the documents name is there.
"""

from __future__ import annotations

import re

import pytest

from features import ROOT


@pytest.mark.parametrize("page", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")))
def test_every_test_file_that_a_page_names_exists(page: str):
    named = set(re.findall(r"tests/[a-z_/]+\.py", (ROOT / page).read_text()))

    assert set() == {path for path in named if not (ROOT / path).is_file()}
