"""A stranger's first minutes: leeward installed from an index of wheels, by an ordinary user with an empty home."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from kit import installing, packages
from kit.beside import TURN
from kit.features import IN_GUEST, ROOT, SLOWER
from kit.installing import Stranger
from kit.ordinary_user import OrdinaryUser
from kit.skip_policy import require
from vm.machine import GUEST

pytestmark = pytest.mark.needs("installers", "system-python", "compiler")

LONG = bool(os.environ.get("LEEWARD_LONG"))
EXEC = "exec 'print(6 * 7)'"
#: Versions of Python beside the system's; a run has one of them, the long form all.
OTHERS = sorted(found.name.removeprefix(".product-") for found in installing.FOLDER.glob(".product-3.*"))
#: What each takes, all together; half of it on an idle machine.
FIRST_MINUTES_S = 300


@pytest.fixture(scope="module")
def programs(open_folder: Path) -> Path:
    return installing.tools(open_folder / "installers")


@pytest.fixture(scope="module")
def url(wheel: Path, open_folder: Path) -> Iterator[str]:
    folder = open_folder / "index"
    folder.mkdir()
    with installing.index([*(installing.FOLDER / "wheels").glob("*.whl"), wheel], folder) as url:
        yield url


@pytest.fixture
def stranger(ordinary_user: OrdinaryUser, programs: Path, url: str, open_folder: Path) -> Stranger:
    home = Path(tempfile.mkdtemp(prefix="h", dir=open_folder))
    (home / "run").mkdir(mode=0o700)
    for folder in (home, home / "run"):
        os.chown(folder, ordinary_user.uid, ordinary_user.gid)
    return Stranger(ordinary_user, home, {
        "HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "UV_DEFAULT_INDEX": url, "PIP_INDEX_URL": url,
        "PIP_CONFIG_FILE": "/dev/null", "PATH": f"{home}/.local/bin:{programs}:/usr/local/bin:/usr/bin:/bin"})


@pytest.mark.timeout(2 * FIRST_MINUTES_S)
def test_the_first_five_minutes(stranger: Stranger, capfd: pytest.CaptureFixture[str]) -> None:
    """The page is the script: each line is typed, and prints what stands below it. The times are shown."""
    rows = installing.blocks(ROOT / "docs/start.md")
    typed = stranger.types([line for line, _ in rows])

    with capfd.disabled():
        print("", *(f"{each.seconds:6.2f} s  {each.line}" for each in typed), sep="\n")
        print(f"{sum(each.seconds for each in typed):6.2f} s  all of the first minutes")
    for (line, shown), each in zip(rows, typed, strict=True):
        assert installing.prints(shown, each.printed), f"$ {line}\n{each.printed}"
    assert sum(each.seconds for each in typed) < FIRST_MINUTES_S


@pytest.fixture(scope="module")
def npm_package(wheel: Path, open_folder: Path) -> Path:
    require("node")
    pack: Callable[[Path, Path], Path] = runpy.run_path(str(ROOT / "packaging/npm.py"))["pack"]
    return pack(wheel.parent, open_folder)


@pytest.mark.parametrize("lacks", ["", "uv", "uv and pipx", "Python"] if LONG else ["uv and pipx"])
@pytest.mark.timeout(4 * installing.PATIENCE_S)
def test_npx_runs_leeward_by_what_there_is(stranger: Stranger, npm_package: Path, lacks: str) -> None:
    """uv, else pipx, else pip; the next time by the C client alone. With nothing it says what is missing."""
    hidden = {"uv": ("uvx",), "uv and pipx": ("uvx", "pipx"), "Python": ("uvx", "pipx", "python3")}.get(lacks, ())
    cover = stranger.home / "programs"
    cover.mkdir()
    for folder in filter(os.path.isdir, stranger.environment["PATH"].split(":")):
        for path in Path(folder).iterdir():
            if path.name not in hidden and not (cover / path.name).is_symlink():
                (cover / path.name).symlink_to(path)
    line = f"PATH={cover} npx --yes --offline --package={npm_package} leeward {EXEC}"
    typed = stranger.types([line] if lacks else [line, line])

    if lacks == "Python":
        assert "leeward: needs uv, pipx, or Python 3.11 or newer with venv and pip; install one of these" in typed[0].printed
        assert 1 == typed[0].status
    else:
        assert all("42" in each.printed.splitlines() for each in typed), typed  # npm may add a notice


#: What the page names beside uv, each in a home of its own; the default run has one.
WAYS = {
    "pip": ["python3 -m venv env && env/bin/pip install -q leeward", f"env/bin/leeward {EXEC}"],
    "pipx": ["pipx install leeward >log 2>&1", f"leeward {EXEC}"],
    "all": ["uv tool install -q 'leeward[all]'", f"leeward {EXEC}", "leeward serve token create me | grep -c e2b_"],
}


@pytest.mark.timeout(4 * installing.PATIENCE_S)
@pytest.mark.parametrize("way", WAYS if LONG else ["pip"])
def test_another_way_to_install_it(stranger: Stranger, way: str) -> None:
    typed = stranger.types(WAYS[way])

    assert "42" == typed[1].printed.splitlines()[-1], typed
    assert [0] * len(typed) == [each.status for each in typed], typed


@pytest.mark.needs("other-python")
@pytest.mark.timeout(6 * installing.PATIENCE_S)
@pytest.mark.parametrize("version", OTHERS if LONG else OTHERS[int(os.environ.get(TURN, "0")) % (len(OTHERS) or 1):][:1])
def test_another_python_has_it(stranger: Stranger, version: str) -> None:
    """The same wheel, of the stable ABI; by pip and pipx, too, in the long form."""
    which = "leeward exec 'import sys; print(*sys.version_info[:2])'"
    with packages.shown_folder() as place:
        python = installing.reachable(ROOT / f".venv-python{version}/bin/python", place)
        made = f"uv venv -q --seed --python {python} env"  # Debian's testing has no ensurepip in this package
        more = ["leeward daemon stop", f"{made} && env/bin/pip install -q leeward", f"env/bin/{which}", "leeward daemon stop",
                "uv tool uninstall -q leeward", f"pipx install --python {python} leeward >log 2>&1", which]
        typed = stranger.types([f"uv tool install -q --python {python} leeward", which, *(more if LONG else ())])

    assert {0} == {each.status for each in typed}, typed
    said = {each.printed.splitlines()[-1] for each in typed if each.line.endswith(which)}
    assert {version.replace(".", " ")} == said, typed


LIMA = yaml.safe_load((ROOT / "packaging/lima.yaml").read_text())


def test_limas_template_keeps_limas_rules() -> None:
    """Those of its own validation that a template can break, by its documentation: limactl isn't here."""
    scripts = [each["script"] for part in ("provision", "probes") for each in LIMA[part]]

    assert {"minimumLimaVersion", "base", "cpus", "memory", "containerd", "param", "provision", "probes"} == set(LIMA)
    assert (1, 1) <= tuple(map(int, LIMA["minimumLimaVersion"].split(".")[:2]))  # the first that knows "base"
    assert "template://debian-12" == LIMA["base"]
    assert ["system"] == [each["mode"] for each in LIMA["provision"]]
    assert ["readiness"] == [each["mode"] for each in LIMA["probes"]]
    assert all(script.startswith("#!/bin/sh\n") and "{{" not in script for script in scripts)
    assert all(re.search(rf"\$PARAM_{name}\b", "".join(scripts)) for name in LIMA["param"])  # an unused one is refused


@pytest.mark.needs("root")
@pytest.mark.timeout(4 * installing.PATIENCE_S * SLOWER)
def test_limas_script_makes_a_machine_with_leeward(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> None:
    """
    Once, for every user. In a guest of tests/vm, a Debian 12 with systemd, the script is as it stands, from a folder of
    wheels, and a user logs in; here it is from an index, into a folder.
    """
    def said(*argv: str) -> str:
        done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True)
        assert 0 == done.returncode, (argv, done)
        return done.stdout

    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null", "PIPX_DEFAULT_BACKEND": "pip"}  # as Debian 12's
    script, probe = (LIMA[part][0]["script"] for part in ("provision", "probes"))
    if IN_GUEST:
        (tmp_path / "pipx").write_text(f"#!/bin/sh\nexec {installing.FOLDER}/bin/python -m pipx \"$@\"\n")
        (tmp_path / "pipx").chmod(0o755)
        env |= {"PATH": f"{tmp_path}:{system}", "PIPX_DEFAULT_PYTHON": "/usr/bin/python3", "PIP_NO_INDEX": "1",
                "PARAM_wheels": f"{wheel.parent} {installing.FOLDER / 'wheels'}"}
    else:
        script = script.replace("/opt/pipx", f"{tmp_path}/pipx").replace("/usr/local/bin", f"{tmp_path}/bin")
        env |= {"PATH": f"{tmp_path}/bin:{request.getfixturevalue('programs')}:{system}", "PARAM_wheels": "",
                "PIP_INDEX_URL": request.getfixturevalue("url"), "LEEWARD_SOCKET": str(tmp_path / "leeward.sock")}
    first, again = (said("sh", "-c", script) for _ in range(2))

    assert "installed package leeward" in first
    assert "" == again
    start = "" if IN_GUEST else "leeward daemon start >/dev/null\n"  # by itself none starts on a socket that is named
    asked = f"set -e\n{probe}\n{start}leeward exec 'print(6 * 7)'\nleeward daemon stop"
    login = ["su", "-", GUEST, "-c", asked] if IN_GUEST else ["sh", "-c", asked]
    assert "42\n" == said(*login)


def test_without_a_compiler_the_error_is_one_line(tmp_path: Path) -> None:
    """Of whatever builds it; installers put their own frame around that."""
    done = subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=False,
                          env={**os.environ, "CC": "/no/gcc"}, capture_output=True, text=True)

    assert (1, "") == (done.returncode, done.stdout)
    assert "leeward: no gcc to compile it with; a wheel needs none: pip install --only-binary leeward leeward" == (
        done.stderr.strip())
    assert 1 == done.stderr.count("\n")
