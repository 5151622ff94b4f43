"""
Hatchling's hook: compiles the shim into a wheel, or in place for an editable install.
"""

from __future__ import annotations

import runpy
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShimHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling picks the configuration's type
    """
    Runs build_ffi.py and tells hatchling what came out of it.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """
        Build before hatchling collects files.

        Args:
            version: "editable", or "standard" for a wheel.
            build_data: what the wheel builder will go by.
        """
        # By path: the project's folder is not on sys.path while a front end builds.
        shim = runpy.run_path(str(Path(self.root) / "build_ffi.py"))
        if "editable" == version:
            shim["build"]()
            return
        self._work = tempfile.TemporaryDirectory(prefix="leeward-wheel-")
        made = shim["build"](Path(self._work.name))
        build_data["force_include"][str(made)] = f"leeward/_native/{shim['FILE']}"
        build_data["pure_python"] = False
        # The limited API of 3.11: one wheel for that and every later CPython.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """
        Remove what was only needed for the wheel.
        """
        if "editable" != version:
            self._work.cleanup()
