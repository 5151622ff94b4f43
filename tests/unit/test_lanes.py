"""The lanes of a whole run: what is in them, and what the run says in the end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import lanes
from kit.beside import FOLDERS, NOT_HIS, ONCE, TURN, TURNS, his
from kit.features import ROOT


def test_the_paths_of_lanes_exist() -> None:
    """And each is named once."""
    names = (*lanes.EARLY, *lanes.SECOND, *lanes.THIRD, *lanes.BOTH)

    assert len(set(names)) == len(names)
    assert [] == [name for name in names if not (ROOT / name).exists()]


def test_the_ordinary_user_has_every_file_of_one_lane_or_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that say nothing about a user; and all of them, where root runs none."""
    monkeypatch.delenv(TURN, raising=False)
    every = [*ROOT.glob("tests/escapes/test_*.py"), *ROOT.glob("tests/integration/test_*.py")]
    second = [path for path in every if path.relative_to(ROOT).as_posix() in lanes.SECOND]
    first = [path for path in every if path not in second]
    kernels = [*ROOT.glob("tests/vm/test_*.py"), *ROOT.glob("tests/unit/wire/test_*.py")]
    common = [ROOT / name for name in lanes.BOTH]

    one, other = his([*first, *common]), his([*second, *kernels, *common])
    assert not set(one) & set(other)
    assert sorted([*one, *other]) == sorted(
        path.relative_to(ROOT).as_posix() for path in every if path.name not in (*NOT_HIS, *ONCE))
    assert [] == [name for name in (*NOT_HIS, *ONCE) if not (ROOT / "tests/integration" / name).exists()]
    assert set(FOLDERS) <= set(his(common))
    assert one == [*(name for name in one if "integration" in name), *(name for name in one if "escapes" in name)]


def test_the_turns_of_a_whole_run_have_every_file_once_and_a_third_of_the_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [*ROOT.glob("tests/escapes/test_*.py"), *ROOT.glob("tests/integration/test_*.py")]
    monkeypatch.delenv(TURN, raising=False)
    whole = his(every)
    had = []
    for turn in range(TURNS):
        monkeypatch.setenv(TURN, str(turn))
        had.append(his(every))

    for folder, parts in FOLDERS.items():
        files = [[name for name in part if name.startswith(folder)] for part in had]
        all_of_it = [name for name in whole if name.startswith(folder)]
        assert sorted(all_of_it) == sorted(itertools.chain(*files[:parts]))
        assert files == files[:parts] * (TURNS // parts)
        assert all(len(part) >= len(all_of_it) // parts for part in files)
    monkeypatch.setenv(TURN, "0")
    assert all([each] == his([ROOT / each]) for each in whole)  # what he has of a file isn't all there is


@pytest.mark.parametrize(("statuses", "failed", "expected"), [
    ((0, 0, 0), (), (0, False)),
    ((0, 1, 0), ("a",), (1, True)),
    ((1, 1, 1), tuple("abcdefgh"), (1, True)),
    ((1, 1, 1), tuple("abcdefghi"), (1, False)),
    ((0, 1, 0), (), (1, False)),
    ((0, 1, 0), ("tests/integration/test_as_ordinary_user.py::test_it",), (1, False)),
    ((2, 1, 0), ("a",), (2, False)),
    ((0, 1, 137), ("a",), (137, False)),
    ((0, 0, 5), (), (5, False)),
])
def test_the_verdict(statuses: tuple[int, ...], failed: tuple[str, ...], expected: tuple[int, bool]) -> None:
    assert expected == lanes.verdict(statuses, failed)


#: A test that passes when it is run once more.
UNSTEADY = """
from pathlib import Path
def test_it():
    again = Path(__file__).with_name("again")
    was = again.exists()
    again.touch()
    assert was
"""
STEADY = "import os\ndef test_it(): assert os.environ.get({name!r}) == {lane!r} and 'PYTHONPATH' not in os.environ\n"


@pytest.mark.thorough
@pytest.mark.parametrize(("late", "status"), [("def test_it(): pass", 0), (UNSTEADY, 0), ("def test_it(): assert 0", 1),
                                              ("import nothing_of_this_name", 2)])
def test_a_run(tmp_path: Path, late: str, status: int) -> None:
    """Four processes, of which two begin when what they need was installed; each test runs in one of them."""
    for name, text in (("early", STEADY.format(name=lanes.LANE, lane="4")), ("late", late),
                       ("third", STEADY.format(name=lanes.LANE, lane="3")),
                       ("other", STEADY.format(name=lanes.LANE, lane=None))):
        (tmp_path / f"test_{name}.py").write_text(text)
    program = (f"import sys\nsys.path.insert(0, {str(ROOT / 'tests')!r})\nfrom pathlib import Path\n"
               "from kit import features, lanes\n"
               f"features.ROOT = Path({str(tmp_path)!r})\n"
               "lanes.EARLY, lanes.SECOND, lanes.THIRD = ('test_early.py',), ('test_late.py',), ('test_third.py',)\n"
               "lanes.BOTH = ()\n"
               "sys.exit(lanes.run(['touch', 'prepared']))")

    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False,
                           env={**{name: value for name, value in os.environ.items() if lanes.LANE != name},
                                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})  # a second for each run otherwise

    assert status == ended.returncode, ended.stdout + ended.stderr
    assert (tmp_path / "prepared").exists()
    assert 0 < ended.stdout.index("test_early.py") < ended.stdout.index("--- the first lane")
    assert (ended.stdout.index("test_other.py") < ended.stdout.index("--- beside it, second")
            < ended.stdout.index("--- beside it, third") < ended.stdout.rindex("test_third.py"))
    assert ("\n    test_late.py::test_it" in ended.stdout) is (status < 2 and "pass" not in late)
    assert ended.stdout.endswith("a defect to be mended:\n    test_late.py::test_it\n") is (UNSTEADY == late)
