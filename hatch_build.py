"""
Hatchling's hook: compiles the shim and libleeward into a wheel or in place, and the program `leeward` for both. What is built
for another system than Linux has neither: clients in Python.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: In the place of the C program where that can't be compiled; installers put their Python into
#: the first line.
SCRIPT = """\
#!python
import sys

from leeward_cli.main import main

sys.exit(main())
"""


def _lacking(compiler: list[str]) -> str:
    """What the shim can't be compiled without and isn't there, as Debian calls it."""
    there = {"gcc": shutil.which(compiler[0]), "python3-dev": Path(sysconfig.get_path("include"), "Python.h").exists()}
    return ", no ".join(name for name, found in there.items() if not found)


class ShimHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling picks the configuration's type
    """Runs build_ffi.py and tells hatchling what came out of it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before hatchling collects files; *version* is "editable", or "standard" for a wheel."""
        self._work = tempfile.mkdtemp(prefix="leeward-wheel-")
        platform = os.environ.get("LEEWARD_PLATFORM") or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        if "linux" not in platform:
            build_data["shared_scripts"][str(self._script(Path(self._work) / "leeward"))] = "leeward"
            build_data["tag"] = f"py3-none-{platform}"
            return
        # By path: the project's folder is not on sys.path while a front end builds.
        shim = runpy.run_path(str(Path(self.root) / "build_ffi.py"))
        if lacking := _lacking(shim["compiler"]()):
            sys.exit(f"leeward: no {lacking} to compile it with; a wheel needs none: "
                     "pip install --only-binary leeward leeward")
        client = runpy.run_path(str(Path(self.root) / "build_client.py"))
        sdk = Path(self.root) / client["SDK"] if version == "editable" else Path(self._work) / "sdk"
        build_data["shared_scripts"][str(self._client(client, sdk))] = "leeward"
        if version == "editable":
            shim["build"]()
            return
        made = shim["build"](Path(self._work))
        build_data["force_include"][str(made)] = f"leeward/_native/{shim['FILE']}"
        for path in sdk.rglob("*"):
            if path.is_file():
                build_data["force_include"][str(path)] = str(client["SDK"] / path.relative_to(sdk))
        build_data["pure_python"] = False
        # The limited API of 3.11: one wheel for that and every later CPython.
        build_data["tag"] = f"cp311-abi3-{platform}"

    def _client(self, client: dict[str, Any], sdk: Path) -> Path:
        """Fill *sdk* with header and libraries; give the program `leeward`."""
        program, objects = Path(self._work) / "leeward", Path(self._work) / "objects"
        objects.mkdir()
        try:
            client["build_program"](program, objects)
            client["install"](sdk, objects, movable=True)
        except (OSError, subprocess.CalledProcessError) as error:
            if os.environ.get("LEEWARD_PLATFORM"):
                raise  # whoever builds for others has a compiler, and wants to know
            print(f"leeward: no C library, and the command line stays in Python, which is slower: {error}",
                  file=sys.stderr)
            shutil.rmtree(sdk, ignore_errors=True)
            self._script(program)
        return program

    def _script(self, path: Path) -> Path:
        path.write_text(SCRIPT)
        return path

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._work)
