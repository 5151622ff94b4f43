"""The package for Node: its own tests, over a live daemon; and that it is what the rest of leeward is."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import leeward
from kit.features import ROOT
from kit.live_daemon import LiveDaemon, command, environment
from leeward import errors
from leeward.client import workdir_errors
from leeward.spec.stand_ins import FETCH
from leeward.spec.tools import TOOLS
from leeward.wire.requests import OPERATIONS

PACKAGE = ROOT / "leeward" / "clients" / "node"
FILES = sorted((ROOT / "tests" / "node").glob("*.test.js"))
PATIENCE = 240

pytestmark = pytest.mark.needs("node>=18")

DAEMON = ("--pool-size", "4")


def promised(file: Path) -> set[str]:
    """The names of the tests in *file*."""
    return set(re.findall(r"^test\('([^'\n]+)'", file.read_text(), re.MULTILINE))


def test_every_test_file_of_the_package_has_unique_tests() -> None:
    """None twice, and none marked to be skipped or to run alone."""
    assert ["client", "msgpack", "remote", "retry", "sandbox", "workdir"] == [file.name.partition(".")[0] for file in FILES]
    for file in FILES:
        text = file.read_text()
        assert len(promised(file)) == len(re.findall(r"^\s*(?:test|it|describe)\(", text, re.MULTILINE)) > 8, file
        assert not re.search(r"\b(?:test|it)\.(?:only|skip|todo)\b", text), file


@pytest.mark.parametrize("file", FILES, ids=[file.name.partition(".")[0] for file in FILES])
def test_every_case_passes(daemon: LiveDaemon, file: Path) -> None:
    """As many as the file has; one that is skipped names what this machine lacks."""
    env = environment(LEEWARD_TEST_SOCKET=str(daemon.socket), LEEWARD_TEST_COMMAND=json.dumps(command()))
    done = subprocess.run(["node", "--test", "--test-reporter=tap", file], env=env, capture_output=True, text=True,
                          check=False, timeout=PATIENCE, cwd=file.parent)
    found = dict(re.findall(r"^ok \d+ - (.*?)(?: # SKIP(.*))?$", done.stdout, re.MULTILINE))
    found = {name.replace("\\#", "#"): skipped.strip() for name, skipped in found.items()}

    assert 0 == done.returncode, done.stdout[-6000:] + done.stderr[-2000:]
    assert promised(file) == set(found)
    assert {""} | {"needs usr-node"} >= set(found.values())
    assert f"\n# pass {len([why for why in found.values() if not why])}\n" in done.stdout
    assert "\n# fail 0\n" in done.stdout
    daemon.idle()


def test_no_sandbox_or_connection_is_left(daemon: LiveDaemon) -> None:
    """No sandbox, and no connection but the one that asks."""
    daemon.idle()
    with leeward.Client(daemon.socket) as client:
        assert 1 == client.status()["connections"]

    assert [] == leeward.Sandbox.list(socket=daemon.socket)


@pytest.mark.needs("typescript")
def test_the_types_are_right() -> None:
    """By tsc, strictly: the declarations, and a program that uses them well, and wrongly where it says so."""
    tools = ROOT / ".venv-typescript" / "node_modules"
    done = subprocess.run([tools / ".bin" / "tsc", "-p", FILES[0].parent / "types", "--typeRoots", tools / "@types"],
                          capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert (0, "") == (done.returncode, done.stdout)


def test_the_types_declare_every_class_of_the_package() -> None:
    """Each class of the package, and no other."""
    said = subprocess.run(["node", "-p", "JSON.stringify(Object.keys(require('./index.js')))"], cwd=PACKAGE, check=True,
                          capture_output=True, text=True).stdout
    declared = set(re.findall(r"^export class (\w+)", (PACKAGE / "index.d.ts").read_text(), re.MULTILINE))

    assert declared == set(json.loads(said)) - {"default"}


def test_errors_have_the_names_of_python() -> None:
    """Every kind of refusal, by its class."""
    said = subprocess.run(
        ["node", "-p", "JSON.stringify(Object.entries(require('./lib/errors.js')).map(([n, c]) => [n, c.kind]))"],
        cwd=PACKAGE, check=True, capture_output=True, text=True).stdout
    kinds = {kind: name for name, kind in json.loads(said) if kind}

    for kind, error in errors.BY_KIND.items():
        assert error.__name__ == kinds[kind]
    for name in ("LeewardError", "PeerError", "DaemonError", "DaemonAway", "NoAnswer", "BadReply", "Refused",
                 "EditError"):
        assert issubclass(getattr(errors, name), errors.LeewardError)
        assert name in dict(json.loads(said))


def test_a_folder_with_tools_is_that_of_python() -> None:
    """The same tools in the same order, and the same words for its errors."""
    code = ("JSON.stringify([require('./lib/tools.js'), Object.entries(require('./lib/errors.js'))"
            ".filter(([n, c]) => c.prototype instanceof require('./index.js').WorkdirError)"
            ".map(([n, c]) => [n, c.kind])])")
    tools, kinds = json.loads(subprocess.run(["node", "-p", code], cwd=PACKAGE, check=True, capture_output=True,
                                             text=True).stdout)

    assert list(TOOLS) == tools
    assert {name: error.kind for name, error in vars(workdir_errors).items()
            if isinstance(error, type) and issubclass(error, workdir_errors.WorkdirError)
            and error is not workdir_errors.WorkdirError} == dict(kinds)
    assert FETCH in (PACKAGE / "lib" / "workdir.js").read_text()


def test_every_operation_that_it_asks_for_is_one() -> None:
    """By their names in the source; and its version is left to whoever publishes it."""
    source = "\n".join(file.read_text() for file in sorted((PACKAGE / "lib").glob("*.js")))
    asked = set(re.findall(r"\b(?:ask|call|send)\('([a-z_]+)'", source))

    assert {"execute", "ping", "status", "keep_results", "kept_read", "kept_drop", "sandbox_open"} < asked
    assert asked <= set(OPERATIONS)


def test_the_package_depends_on_no_other() -> None:
    """What is required is Node's own, or lies beside it."""
    about = json.loads((PACKAGE / "package.json").read_text())
    for file in (PACKAGE / "lib").glob("*.js"):
        for name in re.findall(r"require\('([^']+)'\)", file.read_text()):
            assert name.startswith("node:") or (file.parent / name).resolve().is_relative_to(PACKAGE), (file, name)
            assert name.startswith("node:") or os.path.exists(file.parent / name)

    assert not {"dependencies", "peerDependencies", "optionalDependencies", "scripts.install"} & set(about)
    assert {"bin", "index.js", "index.mjs", "index.d.ts", "lib", "README.md"} == set(about["files"])
    for name in about["files"]:
        assert (PACKAGE / name).exists()


@pytest.mark.timeout(PATIENCE)
def test_it_is_installed_from_a_checkout_by_the_line_of_the_page(tmp_path: Path) -> None:
    (line,) = re.findall(r"`(npm install \./leeward/clients/node)`", (ROOT / "docs/node.md").read_text())
    (tmp_path / "leeward").symlink_to(ROOT / "leeward")
    script = f"{line} --offline --no-audit --no-fund && node -e \"console.log(typeof require('leeward').Client)\""
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={**environment(), "HOME": str(tmp_path)})
    assert (0, "function") == (done.returncode, done.stdout.splitlines()[-1]), done.stderr
