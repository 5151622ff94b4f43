"""
The flake and its module for NixOS, evaluated by the real nix against a stand-in for nixpkgs.

The stand-in, tests/nix, has the names that the flake uses and no packages: what nix is asked for is whether everything
evaluates, and whether the module's units are those of `leeward daemon install`. Nothing is built.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kit.features import ROOT
from leeward_cli.units import SERVICE, SOCKET, Installation, units

pytestmark = pytest.mark.needs("nix")

#: What nix sees of the tree.
PARTS = ("flake.nix", "leeward/__init__.py", "packaging", "tests/nix")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the flake needs of this checkout: nix copies all of a folder into its store."""
    folder = tmp_path / "tree"
    for part in PARTS:
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
    return folder


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    """`nix flake check` of a tree, with a store of its own: the system's can't be written by everybody."""
    home = tree.parent / "home"
    home.mkdir()
    return subprocess.run(
        ["nix", "--store", tree.parent / "store", "--extra-experimental-features", "nix-command flakes",
         "flake", "check", "--no-build", "--no-write-lock-file",
         "--override-input", "nixpkgs", f"path:{tree}/tests/nix", f"path:{tree}"],
        env={"PATH": os.environ["PATH"], "HOME": str(home)}, capture_output=True, text=True, check=False)


def test_the_flake_checks(tree):
    done = check(tree)

    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize(("old", "new", "why"), [
    ("cffi click msgpack structlog", "cffi clack msgpack structlog", "undefined variable 'clack'"),
    ("doCheck = false", "doChek = false", "unknown arguments doChek"),
    ("import ./packaging/nixos.nix", "import ./packaging/nixo.nix", "nixo.nix"),
])
def test_a_flake_that_is_wrong_does_not_check(tree, old, new, why):
    """Control: the stand-in lets through what it knows."""
    flake = tree / "flake.nix"
    assert old in flake.read_text()
    flake.write_text(flake.read_text().replace(old, new))

    done = check(tree)

    assert 0 != done.returncode
    assert why in done.stderr


def module(settings: Mapping[str, object]) -> subprocess.CompletedProcess[str]:
    """What the module makes of an operator's settings of services.leeward."""
    # A dummy store: evaluating needs none.
    return subprocess.run(
        ["nix-instantiate", "--store", "dummy://", "--eval", "--strict", "--json", ROOT / "tests/nix/module.nix",
         "--argstr", "settings", json.dumps(settings)], capture_output=True, text=True, check=False)


def sections(unit: str) -> dict[str, dict[str, str]]:
    """A unit's settings by section."""
    found: dict[str, dict[str, str]] = {}
    for line in unit.splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            section[name] = value
    return found


@pytest.mark.parametrize("group", ["", "sandbox"])
def test_the_module_has_the_units_of_daemon_install(group):
    """One place decides what is hardened; the module follows it."""
    done = module({"enable": True, "group": group})
    assert 0 == done.returncode, done.stderr
    made = json.loads(done.stdout)["systemd"]
    texts = units(Installation(False, ["/nix/store/leeward/bin/leeward-python", "daemon", "run"], group))
    service, socket = sections(texts[SERVICE]), sections(texts[SOCKET])
    service["Service"]["ExecReload"] = "/nix/store/coreutils/bin/" + service["Service"]["ExecReload"]

    assert service["Service"] == made["services"]["leeward"]["serviceConfig"]
    assert socket["Socket"] == made["sockets"]["leeward"]["socketConfig"]
    assert [service["Install"]["WantedBy"]] == made["services"]["leeward"]["wantedBy"]
    assert [socket["Install"]["WantedBy"]] == made["sockets"]["leeward"]["wantedBy"]
    for name, key in (("Requires", "requires"), ("After", "after")):
        assert [service["Unit"][name]] == made["services"]["leeward"][key]


def test_the_module_hands_settings_over_as_a_file():
    made = json.loads(module({"enable": True, "settings": {"pool_size": 8}}).stdout)

    assert made["systemd"]["services"]["leeward"]["serviceConfig"]["ExecStart"].endswith(
        "daemon run --config /nix/store/leeward.toml")


def test_the_module_has_no_effect_until_it_is_enabled():
    assert "{}" == module({}).stdout.strip()


@pytest.mark.parametrize(("settings", "why"), [
    ({"enable": "yes"}, "services.leeward.enable is of another type"),
    ({"enabel": True}, "services.leeward has no option enabel"),
])
def test_a_setting_that_is_wrong_is_refused(settings, why):
    """Control: the module's options are looked at."""
    done = module(settings)

    assert 0 != done.returncode
    assert why in done.stderr
