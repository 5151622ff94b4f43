"""What is built, and that a stranger can install it: wheel, source archive, `dev`."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import pytest

from kit.features import ROOT

SHIM = "leeward/_native/_shim.abi3.so"
#: Of builds whose speed doesn't matter: half of the compiler's time, and of pip's.
QUICKLY = {"LEEWARD_CFLAGS": "-O0 -g0 -U_FORTIFY_SOURCE", "PIP_NO_COMPILE": "1"}


def checkout(to: Path, owner: int = -1) -> Path:
    """A copy of this checkout without anything that was built in it."""
    built = (".git", ".venv*", "*.so", "sdk", "__pycache__", ".*_cache", ".hypothesis", "dist", "build")
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*built))
    for path in (to, *to.rglob("*")):
        os.chown(path, owner, -1)
    return to


#: What a compiler needs of libleeward, below the package.
SDK = {f"leeward/_native/sdk/{path}" for path in (
    "include/leeward.h", "lib/libleeward.so", "lib/libleeward.so.0", "lib/libleeward.a", "lib/pkgconfig/leeward.pc")}


#: Compiled by `leeward bench`, where there is a compiler: what it measures against.
FLOORS = {str(path.relative_to(ROOT / "cli")) for path in (ROOT / "cli").rglob("*.c")}

#: What `leeward agent start` knows: data of the package.
DEFINITIONS = ROOT / "leeward" / "apps" / "agents" / "definitions"
#: The filters, which a daemon reads at its start.
PROGRAMS = ROOT / "leeward" / "isolation" / "seccomp" / "programs"


def test_the_wheel_holds_both_packages_the_shim_libleeward_and_no_sources(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}

    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    assert wheel.stem.split("-")[4].startswith("linux_")
    assert {"leeward", "leeward_cli"} == {top for top in tops if not top.endswith((".dist-info", ".data"))}
    assert {SHIM, "leeward/py.typed", "leeward_cli/main.py"} <= set(names)
    assert {f"leeward/apps/agents/definitions/{path.name}/agent.toml" for path in DEFINITIONS.iterdir()} <= set(names)
    assert {str(path.relative_to(ROOT)) for path in PROGRAMS.iterdir()} <= set(names)
    assert SDK == {name for name in names if "/sdk/" in name}
    assert not [name for name in names if name.endswith((".c", ".h", ".o")) and name not in SDK | FLOORS]
    assert FLOORS <= set(names)
    assert {"scripts/leeward", "data/share/bash-completion/completions/leeward",
            "data/share/zsh/site-functions/_leeward", "data/share/fish/vendor_completions.d/leeward.fish",
            "data/share/man/man1/leeward.1",
            *(f"data/share/man/man1/{page.name}" for page in (ROOT / "packaging/man").glob("*.1")),
            } == {name.split(".data/")[1] for name in names if ".data/" in name}


def test_the_source_archive_builds_the_same_wheel(wheel, tmp_path):
    def build(what: str, folder: Path) -> Path:
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", what, "-d", tmp_path],
                       cwd=folder, check=True, capture_output=True, env={**os.environ, **QUICKLY})
        (made,) = tmp_path.glob("*.tar.gz" if "sdist" == what else "*.whl")
        return made

    subprocess.run(["tar", "-xf", build("sdist", ROOT), "-C", tmp_path], check=True)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())

    assert not list(folder.rglob("*.so"))
    assert list(folder.glob("leeward/_native/src/*.c"))
    rebuilt = build("wheel", folder)
    assert wheel.name == rebuilt.name
    assert set(zipfile.ZipFile(wheel).namelist()) == set(zipfile.ZipFile(rebuilt).namelist())


def test_the_command_is_python_where_the_program_cannot_be_compiled(tmp_path):
    """Slower, and all there."""
    make = runpy.run_path(str(ROOT / "hatch_build.py"))["ShimHook"]
    hook = make(str(tmp_path), {}, None, None, str(tmp_path), "wheel")
    with tempfile.TemporaryDirectory(dir=tmp_path) as hook._work:
        client = runpy.run_path(str(ROOT / "build_client.py"))
        client["build_program"].__globals__["_tool"] = lambda name: [str(tmp_path / "none")]
        script = hook._client(client, tmp_path / "sdk")
        done = subprocess.run([sys.executable, script, "--version"], capture_output=True, text=True, check=True)
        first = script.read_text().splitlines()[0]

    assert not (tmp_path / "sdk").exists()
    assert "#!python" == first
    assert done.stdout.startswith("leeward, version ")


def test_an_ordinary_user_can_import_the_installed_package(ordinary_user, user_install):
    program = "import os, leeward._native._shim as shim; print(os.getuid(), shim.__file__)"

    got = ordinary_user.run([user_install.python, "-c", program])

    assert "" == got.stderr
    uid, where = got.stdout.split(maxsplit=1)
    assert ordinary_user.uid == int(uid)
    assert where.strip().endswith(SHIM)


def test_dev_lists_its_tasks(tmp_path):
    listed = subprocess.run([ROOT / "dev"], capture_output=True, text=True, check=True, cwd=tmp_path)

    assert {"setup", "demo", "test", "lint", "bench", "figures", "suites", "docs", "vm", "fuzz", "build", "emulate", "deb",
            "generate", "lines", "hook", "release", "pictures", "npm", "recording", "image"} == {
        line.split()[1] for line in listed.stdout.splitlines() if line.startswith("./dev ")}

    unknown = subprocess.run([ROOT / "dev", "dance"], capture_output=True, text=True, check=False)
    assert 1 == unknown.returncode
    assert "no task is called dance" in unknown.stderr


@pytest.mark.needs("system-python", "compiler")
@pytest.mark.timeout(300)  # pip installs a dozen packages
@pytest.mark.parametrize("who", ["ordinary user", *(
    [pytest.param("root", marks=pytest.mark.needs("root"))] if os.environ.get("LEEWARD_LONG") else [])])
def test_dev_sets_up_a_demo_in_a_path_with_spaces(ordinary_user, open_folder, who):
    if "root" == who:
        copy = checkout(open_folder / "the tree of root")
        environment = {**ordinary_user.environment, **QUICKLY, "HOME": str(open_folder)}
        run = partial(subprocess.run, capture_output=True, text=True, check=False, env=environment, cwd="/",
                      stdin=subprocess.DEVNULL)
    else:
        copy = checkout(ordinary_user.home / "my own tree", ordinary_user.uid)
        run = partial(ordinary_user.run, env=QUICKLY)
    dev = copy / "dev"

    first = run([dev, "setup"])
    assert 0 == first.returncode, first.stderr
    assert (copy / SHIM).exists()
    assert not list(copy.glob(".venv/lib/python*/site-packages/*seccomp*"))  # the tests' alone

    demo = run([dev, "demo"])
    assert (0, "") == (demo.returncode, demo.stderr)
    assert "Collatz, 1 to 2000: 67.0 steps" in demo.stdout  # what the program computed
    assert "I am uid 1000" in demo.stdout  # where it ran
    assert "not refused" not in demo.stdout
    assert re.search("^ *seccomp +active", demo.stdout, re.MULTILINE)  # what confined it
    assert re.search(r" (\S+/leeward) exec 'print\(6 \* 7\)'$", demo.stdout.rstrip())  # what to type next

    again = run([dev, "setup"])
    assert (0, "", "") == (again.returncode, again.stdout, again.stderr)  # nothing left to do

    with (copy / "leeward/_native/src/raw.h").open("a") as declarations:
        declarations.write("\n")
    transport = ("io_uring and socket" if Path("/usr/include/liburing.h").exists()
                 else "socket only, as liburing 2.3 or newer isn't here to link")
    assert f"dev: compiling the shim\nleeward: shim built; transport: {transport}\n" == run([dev, "setup"]).stderr


@pytest.fixture
def bare_tools(open_folder):
    """A folder of commands, as a system without Python and a compiler has them."""
    folder = open_folder / "bare-tools"
    folder.mkdir(exist_ok=True)
    for name in ("sh", "cat", "cksum", "dirname", "grep", "id", "printf", "rm", "stat", "tr"):
        (folder / name).symlink_to(shutil.which(name))
    (folder / "apt-get").symlink_to("/bin/false")
    yield folder
    shutil.rmtree(folder)


def folder_of_dev(to: Path, owner: int) -> Path:
    """`./dev` with what it reads before it installs anything; a whole checkout takes seconds to copy."""
    to.mkdir()
    for name in ("dev", "pyproject.toml", "hatch_build.py", "build_ffi.py", "build_client.py"):
        shutil.copy(ROOT / name, to)
    for name in ("leeward/_native", "leeward/clients/c"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("*.so", "sdk", "__pycache__"))
    for path in (to, *to.rglob("*")):
        os.chown(path, owner, -1)
    return to


def test_an_ordinary_user_is_told_the_line_for_an_administrator(ordinary_user, bare_tools):
    copy = folder_of_dev(ordinary_user.home / "bare tree", ordinary_user.uid)

    for task, more in (("demo", ""), ("test", " libseccomp2 libcap-dev libpython3-testsuite")):
        got = ordinary_user.run([copy / "dev", task], env={"PATH": str(bare_tools)})
        assert 1 == got.returncode
        assert ("    apt-get install -y --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev"
                f"{more}\n") in got.stderr
    shutil.rmtree(copy)


@pytest.mark.needs("root")
def test_a_checkout_of_root_says_so_to_others(ordinary_user, open_folder):
    copy = folder_of_dev(open_folder / "tree of root", 0)

    got = ordinary_user.run([copy / "dev", "setup"])

    assert 1 == got.returncode
    assert f"dev: {copy} belongs to root, and {ordinary_user.name} can't write there" in got.stderr
