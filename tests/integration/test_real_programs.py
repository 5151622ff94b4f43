"""
What ordinary programs do, and expect to work, inside.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from box import Box
from leeward.outcome import Outcome


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """
    The product as it is.
    """
    with Box() as made:
        yield made


def test_a_named_script_knows_its_file(box: Box) -> None:
    """
    As after `python job.py`: beside it lie the job's files.
    """
    got = box.run("from pathlib import Path; print(__file__, (Path(__file__).parent / 'data').read_text())",
                  name="job.py", files={"data": b"42"})

    assert "/workspace/job.py 42\n" == got.stdout_text, got.stderr_text


def test_a_file_of_the_job_is_not_replaced_by_its_script(box: Box) -> None:
    """
    It was asked for by name.
    """
    got = box.run("print(open('job.py').read())", name="job.py", files={"job.py": b"data"})

    assert "data\n" == got.stdout_text, got.stderr_text


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(box: Box, method: str) -> None:
    """
    With a function of the script, which spawn and forkserver find by importing the script again.
    """
    got = box.run(f"""
        import multiprocessing
        def square(x):
            return x * x
        if __name__ == "__main__":
            with multiprocessing.get_context({method!r}).Pool(2) as pool:
                print(pool.map(square, range(4)))
        """, name="job.py")

    assert (Outcome.FINISHED, "[0, 1, 4, 9]\n") == (got.outcome, got.stdout_text), got.stderr_text


@pytest.mark.parametrize(("what", "code", "says"), [
    ("ssl", "import ssl; print(ssl.create_default_context().check_hostname)", "True"),
    ("zoneinfo", "import zoneinfo; print(zoneinfo.ZoneInfo('Europe/Berlin'))", "Europe/Berlin"),
    ("locale", "import locale; print(locale.setlocale(locale.LC_ALL, ''))", "C.UTF-8"),
    ("sqlite", "import sqlite3; c = sqlite3.connect('a.db'); print(*c.execute('pragma journal_mode=wal').fetchone())",
     "wal"),
    ("a tool", "import subprocess; print(subprocess.check_output(['ls', '/workspace']))", "b''"),
    ("itself", "import subprocess, sys; subprocess.run([sys.executable, '-m', 'timeit', '-n1', '-r1', 'print(7)'])",
     "7\n1 loop, best of 1: "),
    ("shared memory", ("from multiprocessing.shared_memory import SharedMemory as S; s = S(create=True, size=9);"
                      " print(len(s.buf) >= 9); s.close(); s.unlink()"), "True"),
    ("dbm", "import shelve\nwith shelve.open('s') as s: s['a'] = 1\nprint(dict(shelve.open('s')))", "{'a': 1}"),
    ("a large temporary file", "import tempfile; f = tempfile.TemporaryFile(); print(f.write(bytes(50_000_000)))",
     "50000000"),
    ("the user", "import getpass, os; print(getpass.getuser(), os.path.expanduser('~'))", "sandbox /workspace"),
    ("processors", "import os; print(os.cpu_count() >= 1, os.sysconf('SC_PHYS_PAGES') > 0)", "True True"),
])
def test_the_usual(box: Box, what: str, code: str, says: str) -> None:
    """
    Each of these needs something of the sandbox that is easy to forget.
    """
    got = box.run(code)

    assert got.stdout_text.startswith(says), (what, got.stdout_text, got.stderr_text)
    assert {} == got.denied
