"""The catalogue of attacks and the tests that cite it say the same; and the check that finds out can fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit import catalogue
from kit.catalogue import Citation, Row
from kit.features import ROOT
from kit.locks import BUILT_IN, LOCKS

TEXT = catalogue.PAGE.read_text()
ROWS = catalogue.rows(TEXT)
CITED = catalogue.citations(ROOT / "tests")


def test_every_number_stands_once() -> None:
    """A number that was given up is not given again, so there may be gaps."""
    numbers = [number for row in ROWS for number in row.numbers]

    assert len(numbers) == len(set(numbers)) > 150


def test_every_number_that_a_test_cites_is_there() -> None:
    assert set() == set(CITED) - {number for row in ROWS for number in row.numbers}


def test_every_number_has_a_test_or_a_reason() -> None:
    for row in ROWS:
        tested = [number for number in row.numbers if number in CITED]
        reason = row.tests.startswith("none: ") and len(row.tests) > len("none: ")

        assert reason is not bool(tested), row.numbers
        assert 1 == len(row.numbers) or reason


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    named = re.findall(r"`(tests/[\w/.]+)`", TEXT)

    assert len(links) > 150
    assert [] == [link for link in links if not (catalogue.PAGE.parent / link).is_file()]
    assert [] == [path for path in named if not (ROOT / path).is_file()]


def test_every_row_has_an_attack_and_its_lock() -> None:
    for row in ROWS:
        if not row.tests.startswith("none: "):
            assert 1 == row.attack.count(" — "), row.numbers
            assert row.held_by, row.numbers


def test_the_locks_that_a_row_names_are_those_that_its_tests_claim() -> None:
    """All of them, and no other, but for what has to stand beside one."""
    for row in ROWS:
        tests = [each for number in row.numbers for each in CITED.get(number, [])]
        claimed = {lock for each in tests for lock in each.locks}
        beside = {lock for each in tests for lock in each.beside}

        assert claimed <= row.locks, row.numbers
        assert row.locks & (LOCKS | BUILT_IN) <= claimed | beside, row.numbers


@pytest.mark.parametrize(("name", "numbers"), [
    ("test_c034_cannot", [34]),
    ("test_c095_c164_no_two", [95, 164]),
    ("test_c088_to_c092_every", [88, 89, 90, 91, 92]),
    ("test_cannot_c034", []),
    ("test_c34_short", []),
])
def test_a_name_cites_its_numbers(name: str, numbers: list[int]) -> None:
    assert numbers == catalogue.cited(name)


def test_tests_are_found_with_the_locks_of_their_marks(tmp_path: Path) -> None:
    (tmp_path / "escapes").mkdir()
    (tmp_path / "escapes/test_it.py").write_text(
        '@pytest.mark.lock("seccomp", beside=("mounts",), because="so")\n@pytest.mark.timeout(3)\n'
        "def test_c001_c002_cannot(): pass\nTEXT = 'def test_c003_cannot(): pass'\n")

    here = Citation(Path("escapes/test_it.py"), "test_c001_c002_cannot", frozenset({"seccomp"}), frozenset({"mounts"}))
    assert {1: [here], 2: [here]} == catalogue.citations(tmp_path)


def test_the_column_is_written_from_the_tests() -> None:
    here = [Citation(Path(path), "test_c001_x") for path in ("unit/wire/test_b.py", "escapes/test_a.py")]

    text = catalogue.renewed("| c001 | a — b | `seccomp` | old |\n"
                             "| c002 | a | | none: so |\n| c003 | a — b | c | old |\n| c004 | a — b | c | |\n",
                             {1: here, 4: here[1:]})

    assert text == ("| c001 | a — b | `seccomp` | [test_a](test_a.py), [unit/wire/test_b](../unit/wire/test_b.py) |\n"
                    "| c002 | a | | none: so |\n| c003 | a — b | c |  |\n"
                    "| c004 | a — b | c | [test_a](test_a.py) |\n")


def test_a_malformed_row_is_an_error() -> None:
    assert [Row(range(118, 132), "a", "", "none: so")] == catalogue.rows("| c118 to c131 | a | | none: so |\n")
    with pytest.raises(ValueError, match="no row"):
        catalogue.rows("| c1 | a | b | c |\n")
