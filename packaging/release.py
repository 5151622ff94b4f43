"""
`./dev release`: makes and checks what is published, and describes it; docs/CONTRIBUTING.md. It publishes nothing.

    ./dev release               takes hours, and ends at the first step that fails
    ./dev release --rehearse    all steps whatever the changelog and the runs of kernels say, and describes nothing

Called again on the same commit, it goes on with the step that failed: build/released has those that are done.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from leeward import __version__

ROOT = Path(__file__).resolve().parent.parent

#: Tasks of `./dev`, in their order. The runs of kernels come first: those that are recorded anew have to be committed.
KERNELS = "vm --check"
STEPS = (KERNELS, "lint", "test", "build", "build --all", "deb --lint", "deb --try", "emulate")

LEFT = """\
{version} of {commit} is in dist/: dist/SHA256SUMS lists it, dist/NOTES.md says what is new. What is left:

  LEEWARD_LONG=1 ./dev test            the long forms, unless it was set now: hours
  git tag -s v{version} {commit}
  publish the tag, and what dist/SHA256SUMS lists, with dist/NOTES.md
"""

REHEARSED = "a release of {commit} was rehearsed; dist/ has no SHA256SUMS and no NOTES.md of it"
STALE = """\
the rows of kernels above are of other sources. Call what each names, which takes up to half an hour, or for all \
./dev vm --all --record; then commit docs/kernel-runs and docs/kernel.md, and call this again"""


class Stop(Exception):
    """A step has failed."""


def notes(version: str) -> str:
    """What the changelog says about *version*; Stop if it or the package for Debian is about another, or there is no date."""
    section = re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)",
                        (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL)
    if section is None:
        raise Stop(f"CHANGELOG.md has no section of {version} with a date, as in '## {version}, 2030-12-31'")
    if not (ROOT / "packaging/debian/changelog").read_text().startswith(f"leeward ({version}-"):
        raise Stop(f"packaging/debian/changelog doesn't begin with {version}")
    return section[1].strip() + "\n"


def told(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def committed() -> str:
    changed = told("git", "status", "--porcelain")
    if changed:
        raise Stop(f"these have to be committed first:\n{changed}")
    return told("git", "rev-parse", "HEAD")


def passes(task: str) -> bool:
    print(f"release: ./dev {task}", file=sys.stderr)
    return not subprocess.run([ROOT / "dev", *task.split()], cwd=ROOT, check=False).returncode


def sums(dist: Path, version: str) -> Iterator[str]:
    for path in sorted(dist.iterdir()):
        if version in path.name:
            yield f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"


def release(version: str, rehearsed: bool = False) -> None:
    """
    Carry out each step that isn't done on this commit, and print what is left for a person; Stop if one fails. If it is
    only *rehearsed*, the changelog may lack a date, and other steps follow the runs of kernels if these fail.
    """
    text, commit, done = "" if rehearsed else notes(version), committed(), ROOT / "build/released"
    stale = False
    if os.geteuid():
        raise Stop("only root's run tests both as root and as an ordinary user")
    done.parent.mkdir(exist_ok=True)
    done.touch()
    for step in STEPS:
        if f"{commit} {step}" in done.read_text().splitlines():
            continue
        if not passes(step):
            stale = step == KERNELS
            if not stale or not rehearsed:
                raise Stop(STALE if stale else f"./dev {step} has failed")
            continue
        committed()
        with done.open("a") as file:
            file.write(f"{commit} {step}\n")
    if stale:
        passes(KERNELS)  # once more, behind all that the others have said
        raise Stop(f"all else has passed; {STALE}")
    if rehearsed:
        print(REHEARSED.format(commit=commit))
        return
    dist = ROOT / "dist"
    (dist / "NOTES.md").write_text(text)
    (dist / "SHA256SUMS").write_text("".join(sums(dist, version)))
    print(LEFT.format(version=version, commit=commit), end="")


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--rehearse"]):
        sys.exit(__doc__)
    try:
        release(__version__, rehearsed=bool(sys.argv[1:]))
    except Stop as stop:
        sys.exit(f"release: {stop}")
