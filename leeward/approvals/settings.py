"""
The keys of the service's configuration that can be set while it runs, by the operator, or by a sandbox's proposal that
a person has approved.

Runs in:   the operator's program that decides.
Holds:     only keys of this list may be proposed. Modes of exec, packages and sandbox aren't in it, nor are rules: a
           sandbox can't propose that fewer of these requests need a person.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from typing import Any

from leeward.approvals.orders import EXEC_S, LONGEST_EXEC_S
from leeward.approvals.queue import ApprovalQueue
from leeward.approvals.rules import check_mode
from leeward.errors import BadRequest

FILE = "settings.json"

#: Keys with the categories whose modes they are.
MODES = {f"mode.{category}": category for category in ("network", "filesystem", "git")}

#: The other keys, with their defaults.
DEFAULTS: dict[str, float | str] = {"exec.timeout": EXEC_S, "exec.profile": ""}

KEYS = (*MODES, *DEFAULTS)


def check_setting(key: str, value: Any) -> str | float:
    """
    *value* as it is kept.

    Raises:
        BadRequest: no key that can be set, or no value of it.
    """
    if key not in KEYS:
        raise BadRequest(f"no key that can be set; these are: {', '.join(KEYS)}")
    if key in MODES:
        check_mode(MODES[key], value if isinstance(value, str) else "")
        return str(value)
    if "exec.timeout" == key:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= LONGEST_EXEC_S:
            raise BadRequest(f"{key} is a number of seconds from 1 to {LONGEST_EXEC_S:.0f}")
        return float(value)
    if not isinstance(value, str) or len(value) > 64 or not (value.replace("-", "").replace("_", "").isalnum()
                                                             or not value):
        raise BadRequest(f"{key} is the name of a profile, or nothing")
    return value


class ServiceSettings:
    """
    Args:
        folder: of the user, where they are kept.
        queue: which has the modes.
    """

    def __init__(self, folder: str, queue: ApprovalQueue) -> None:
        self._path, self._queue, self._lock = os.path.join(folder, FILE), queue, threading.Lock()
        self._kept = self._read()

    def _read(self) -> dict[str, float | str]:
        try:
            with open(self._path, encoding="utf-8") as file:
                said = json.load(file)
            return {key: check_setting(key, value) for key, value in said.items() if key in DEFAULTS}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, BadRequest) as error:
            raise BadRequest(f"{self._path}: {error}") from None

    def all(self) -> dict[str, float | str]:
        """
        Each key with its value.
        """
        rules = self._queue.rules()
        with self._lock:
            return {**{key: rules.mode(category) for key, category in MODES.items()}, **DEFAULTS, **self._kept}

    def set(self, key: str, value: Any) -> None:
        """
        Raises:
            BadRequest: no key, or no value of it.
            OSError: the disk is full or can't be written.
        """
        found = check_setting(key, value)
        if key in MODES:
            self._queue.set_mode(MODES[key], str(found))
            return
        with self._lock:
            kept = {**self._kept, key: found}
            way = f"{self._path}.{secrets.token_hex(8)}"
            try:
                with open(os.open(way, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                    json.dump(kept, file)
                os.rename(way, self._path)
            except OSError:
                if os.path.exists(way):
                    os.unlink(way)
                raise
            self._kept = kept
