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


def _section(page: str, heading: str) -> str:
    text = (ROOT / page).read_text()
    assert f"\n## {heading}\n" in text
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_case_of_the_threat_model_has_a_test_or_a_reason():
    """
    By the number in a test's name, in one of the files that its row names; or it is named among those without one.
    """
    cannot = {int(number) for number in
              re.findall(r"\* \((\d+)\)", _section("docs/threat-model.md", "What can't be attacked here, and why"))}
    seen, without = set(), []
    for row in _section("docs/threat-model.md", "Where the cases are tested").splitlines():
        match = re.fullmatch(r"\| [^|]+ \| (\d+) to (\d+) \| ([^|]+) \|", row)
        if match is None:
            continue
        tests = "".join((ROOT / path).read_text() for path in re.findall(r"`([^`]+)`", match[3]))
        names = " ".join(re.findall(r"def (test_\w+)", tests))
        for number in range(int(match[1]), int(match[2]) + 1):
            seen.add(number)
            if f"_c{number:03}_" not in names and number not in cannot:
                without.append(number)

    assert {*range(1, 98), *range(157, 168)} == seen
    assert [] == without
    assert cannot <= seen
