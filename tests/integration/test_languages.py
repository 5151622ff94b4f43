"""
libleeward from every language that has a page: the examples, the pages' ten lines, `leeward config`.

Runs against what is installed: header and libraries are those that `leeward config` names.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import leeward
from kit import features, reactors
from kit.features import ROOT
from kit.live_daemon import PROGRAM, LiveDaemon, environment
from kit.skip_policy import require

pytestmark = pytest.mark.needs("libleeward", "compiler")

#: By the name of its page: what it takes beside a C compiler.
LANGUAGES = {"c": (), "cpp": ("c++",), "go": ("go",), "rust": ("rust",), "node": ("koffi",)}

#: Builds an example in a copy of its folder; nothing where there is nothing to build.
BUILD = {
    "c": "cc -std=c11 -Wall -Wextra -Wconversion -Wpedantic -Werror run.c $(leeward config --cflags --libs) -o run",
    "cpp": "c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror run.cpp $(leeward config --cflags --libs --static) -o run",
    "go": 'CGO_CFLAGS="$(leeward config --cflags)" CGO_LDFLAGS="$(leeward config --libs)" go build -o run .',
    "rust": "RUSTFLAGS='-D warnings' cargo build --quiet --offline",
    "node": "",
}
FOLDER = {"cpp": "c"}
RUN = {"rust": ["target/debug/leeward-run"], "node": ["node", "run.js"]}

each_language = pytest.mark.parametrize(
    "language", [pytest.param(name, marks=pytest.mark.needs(*needed)) if needed else name
                 for name, needed in LANGUAGES.items()])


@dataclass
class Workshop:
    """A folder, and an environment with `leeward` on its PATH and a daemon that runs."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str | Path, **more: str) -> tuple[int, bytes, bytes]:
        done = subprocess.run(command, cwd=self.folder, env={**self.environment, **more}, capture_output=True,
                              check=False, stdin=subprocess.DEVNULL, timeout=110)
        return done.returncode, done.stdout, done.stderr

    def shell(self, lines: str) -> bytes:
        status, out, errors = self.run("sh", "-ec", lines)

        assert 0 == status, errors.decode()
        return out


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Those of a daemon for each transport that this host has: what is built once runs over both."""
    ways = [reactors.EPOLL, *([reactors.URING] if features.is_met("uring-transport") else [])]
    with contextlib.ExitStack() as daemons:
        yield [str(daemons.enter_context(LiveDaemon(tmp_path_factory.mktemp(way), "--pool-size", "2",
                                                    *reactors.OPTIONS[way])).socket) for way in ways]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `leeward` of these tests, and what compilers keep between runs beside it."""
    folder = tmp_path_factory.mktemp("commands")
    # A shell splits what $(leeward config) prints at blanks. Where this checkout's path has one, the package is
    # reached by a link without.
    plain = folder / "plain"
    plain.symlink_to(Path(leeward.__path__[0]).parent)
    script = folder / "leeward"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={plain} exec {shlex.join(map(str, PROGRAM))} "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture
def workshop(sockets: list[str], commands: Path, tmp_path: Path) -> Workshop:
    path = ":".join([str(commands), *filter(None, [features.rust()]), os.environ["PATH"]])
    return Workshop(tmp_path, environment(
        sockets[0], PATH=path, GOCACHE=str(commands / "go-cache"), GOFLAGS="-mod=mod", GOPROXY="off",
        NODE_PATH=str(ROOT / ".venv-node" / "node_modules")))


@each_language
def test_the_example_runs(workshop: Workshop, sockets: list[str], language: str) -> None:
    """Output and exit code of the job, a time limit, 16 MiB, and nobody there."""
    shutil.copytree(ROOT / "examples" / FOLDER.get(language, language), workshop.folder, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("target", "node_modules"))
    workshop.shell(BUILD[language])
    program = RUN.get(language, ["./run"])

    for socket in sockets:
        def run(*argv: str, socket: str = socket) -> tuple[int, bytes, bytes]:
            return workshop.run(*program, *argv, LEEWARD_SOCKET=socket)

        assert (0, b"hello from a sandbox\n", b"") == run()
        assert (3, b"6\n", b"e") == run("import sys; print(6); sys.stderr.write('e'); sys.exit(3)")
        assert (124, b"", b"the job ran into its time limit\n") == run("while True: pass", "0.2")
        assert (0, b"x" * (16 << 20), b"") == run("print('x' * (16 << 20), end='')")
    status, out, errors = workshop.run(*program, LEEWARD_SOCKET=str(workshop.folder / "none"))
    assert (1, b"") == (status, out)
    assert b"leeward daemon start" in errors


@each_language
def test_the_page_runs(workshop: Workshop, sockets: list[str], language: str) -> None:
    """The program of ten lines and the lines for a shell, as a reader copies them."""
    page = (ROOT / "docs" / "languages" / f"{language}.md").read_text()
    name = re.search(r"`(hello\.\w+)`:\n\n```", page)
    program, typed, printed = re.findall(r"^```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    assert name is not None
    (workshop.folder / name[1]).write_text(program)
    for socket in sockets:
        workshop.environment["LEEWARD_SOCKET"] = socket
        assert printed.encode() == workshop.shell(typed)
    assert "examples/" in page


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_the_ten_line_program_prints_the_connection_error(workshop: Workshop, language: str) -> None:
    """Without a daemon; the page's program itself doesn't look at leeward_connect's error."""
    if "cpp" == language:
        require("c++")
    page = (ROOT / "docs" / "languages" / f"{language}.md").read_text()
    program, typed, _ = re.findall(r"^```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (workshop.folder / f"hello.{language}").write_text(program)

    status, out, errors = workshop.run("sh", "-ec", typed, LEEWARD_SOCKET=str(workshop.folder / "none"))

    assert (1, b"") == (status, out)
    assert b"leeward daemon start" in errors


def test_the_pages_are_those_of_the_examples() -> None:
    """And the page of the whole interface names each of them."""
    pages = {path.stem for path in (ROOT / "docs" / "languages").iterdir()}
    whole = (ROOT / "docs" / "c-api.md").read_text()

    assert set(LANGUAGES) == pages
    assert pages == set(re.findall(r"\(languages/(\w+)\.md\)", whole))


def test_config_is_enough_for_a_compiler(workshop: Workshop) -> None:
    """The shared library by name, the archive by path, and the path for those who load it."""
    (workshop.folder / "a.c").write_text("#include <leeward.h>\n#include <stdio.h>\n"
                                         "int main(void) { return puts(leeward_version()) < 0; }\n")
    for how in ("--cflags --libs", "--cflags --libs --static"):
        shown = workshop.shell(f"cc -Werror a.c $(leeward config {how}) -o a && ./a && ldd ./a")
        version, _, linked = shown.partition(b"\n")

        assert re.fullmatch(rb"\d+\.\d+\.\d+\S*", version)
        assert (b"libleeward.so.0" in linked) is ("--static" not in how)
    assert Path(os.fsdecode(workshop.shell("leeward config --library").strip())).is_file()


@pytest.mark.parametrize("arguments", [[], ["--static"], ["--cflags", "--library"], ["--library", "--install", "x"]])
def test_config_names_its_options_in_a_usage_error(workshop: Workshop, arguments: list[str]) -> None:
    status, out, errors = workshop.run("leeward", "config", *arguments)

    assert (2, b"") == (status, out)
    assert b"--cflags and --libs" in errors


@pytest.mark.needs("pkg-config")
def test_config_installs_under_a_prefix(workshop: Workshop) -> None:
    """What pkg-config then says is enough; a second time replaces, and a folder of others is an error of one line."""
    prefix = workshop.folder / "a prefix"
    for _ in range(2):
        printed = workshop.shell(f"leeward config --install '{prefix}'")
    (workshop.folder / "a.c").write_text("#include <leeward.h>\nint main(void) { return !leeward_version(); }\n")

    assert sorted(os.fsdecode(printed).splitlines()) == sorted(
        str(path) for path in prefix.rglob("*") if not path.is_dir())
    assert "libleeward.so.0" == os.readlink(prefix / "lib" / "libleeward.so")
    workshop.shell(f"""
        export PKG_CONFIG_PATH='{prefix}/lib/pkgconfig'
        eval "cc a.c $(pkg-config --cflags --libs leeward) -o a"
        LD_LIBRARY_PATH='{prefix}/lib' ./a
    """)
    status, out, errors = workshop.run("leeward", "config", "--install", "/proc/none")
    assert (1, b"", 1) == (status, out, errors.count(b"\n"))


def test_an_installation_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                    capfd: pytest.CaptureFixture[str]) -> None:
    from leeward_cli import library
    from leeward_cli.full import app

    monkeypatch.setattr(library, "SDK", tmp_path)

    for arguments in (["--cflags"], ["--library"], ["--install", str(tmp_path / "p")]):
        assert 1 == app(["config", *arguments])
        assert re.fullmatch(r"leeward: libleeward: have none in .*gcc.*\n", capfd.readouterr().err)
