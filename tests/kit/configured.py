"""Configurations from files of a test's own, never from the host's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from leeward.daemon.config import Config
from leeward.daemon.config_sources import load


def loaded(home: Path, explicit: Path | None = None, overrides: dict[str, Any] | None = None, *,
           system: Path | None = None, **environ: str) -> Config:
    return load(None if explicit is None else str(explicit), overrides, environ={"HOME": str(home), **environ},
                uid=os.geteuid(), system_file=str(system or home / "none.toml"))


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path
