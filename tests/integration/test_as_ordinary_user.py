"""
The integration and escape tests again, by somebody without any privilege.

root's run starts one pytest as an ordinary user, on an installation that he can reach and
a copy of the tests, and passes if that passes. What he finds is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import features
from ordinary_user import Installation, OrdinaryUser

#: About the checkout, root's own set-up or this very test: they say nothing about a user.
NOT_HIS = ("test_packaging.py", "test_readme.py", "test_sanitizers.py", "test_as_ordinary_user.py")

#: Modules of CPython's tests that compute and nothing else, the same for every user; root's run has them.
ONLY_COMPUTING = () if os.environ.get("LEEWARD_LONG") else (
    "zipfile", "pickle", "decimal", "datetime", "json", "re", "math", "collections", "itertools", "functools", "csv",
    "unicodedata", "statistics")

#: A quarter of an hour: the machine may be slow, and this is many tests in one. Hours for their long forms.
DEADLINE_S = 4 * 3600 if os.environ.get("LEEWARD_LONG") else 900


def _checkout(folder: Path, installation: Installation) -> Path:
    """
    The tests and what they read, where everybody may read them; with the shim that is installed,
    for those that start children in the checkout.
    """
    for name in ("tests", "examples", "docs", "leeward", "cli"):
        shutil.copytree(features.ROOT / name, folder / name,
                        ignore=shutil.ignore_patterns("__pycache__", "*.so", "sdk"))
    (shim,) = installation.folder.glob("lib/python*/site-packages/leeward/_native/_shim*.so")
    shutil.copy(shim, folder / "leeward" / "_native")
    for name in ("pyproject.toml", "README.md", "build_client.py"):
        shutil.copy(features.ROOT / name, folder / name)
    if (features.ROOT / ".venv-node").exists():
        shutil.copytree(features.ROOT / ".venv-node", folder / ".venv-node")
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    return folder


@pytest.mark.needs("root", "ordinary-user")
@pytest.mark.timeout(DEADLINE_S + 60)
def test_the_same_holds_for_an_ordinary_user(ordinary_user: OrdinaryUser, user_install: Installation, open_folder: Path,
                                             capfd: pytest.CaptureFixture[str]):
    """
    Every integration and escape test passes without root.
    """
    checkout = _checkout(open_folder / "checkout", user_install)
    wanted = ("pytest", "pytest-timeout", "hypothesis", "landlock")
    subprocess.run([sys.executable, "-m", "pip", "--python", user_install.python, "install", "--quiet",
                    "--disable-pip-version-check", *wanted], check=True, capture_output=True)

    run = ordinary_user.popen(
        # Not `python -m pytest`, which puts the checkout on sys.path, before what is installed.
        [user_install.folder / "bin" / "pytest", "-q", "-p", "no:cacheprovider", "tests/integration", "tests/escapes",
         *(f"--ignore=tests/integration/{name}" for name in NOT_HIS),
         *("--deselect=tests/integration/test_cpython_suite.py::test_passes_inside_what_passes_outside"
           f"[test_{name}]" for name in ONLY_COMPUTING),
         "--deselect=tests/integration/test_c_client.py::test_c113_no_bytes_do_harm"],  # the same bytes for everybody
        cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={"PATH": f"{user_install.folder}/bin:/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(ordinary_user.home),
             **({"LEEWARD_LONG": "1"} if os.environ.get("LEEWARD_LONG") else {})})
    try:
        said, _ = run.communicate(timeout=DEADLINE_S)
    finally:
        run.kill()

    with capfd.disabled():
        sys.stdout.write("\n--- as an ordinary user\n" + "".join(said.splitlines(keepends=True)[-60:]) + "---\n")
    assert 0 == run.returncode, said
