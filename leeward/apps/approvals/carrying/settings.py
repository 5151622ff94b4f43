"""
The keys of the service's configuration that can be set while the service runs: by the operator, or by a sandbox's
proposal that a person has approved.

Holds:     only keys of KEYS can be proposed. Rules and the modes of exec, packages and sandbox aren't among them, so a
           sandbox can't propose that fewer of these requests need a person.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from leeward.apps.approvals.carrying.orders import EXEC_S, LONGEST_EXEC_S, is_profile
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.rules import check_mode
from leeward.apps.approvals.queue.store import write_file
from leeward.errors import BadRequest, brief

FILE = "settings.json"

#: The keys for modes, each with its category.
MODES = {f"mode.{category}": category for category in ("network", "filesystem", "git")}

#: The other keys, with their defaults.
DEFAULTS: dict[str, float | str] = {"exec.timeout": EXEC_S, "exec.profile": ""}

KEYS = (*MODES, *DEFAULTS)


def check_setting(key: str, value: Any) -> str | float:
    """*value* in the form that is kept; BadRequest if there is no such key, or *value* isn't one of it."""
    if key not in KEYS:
        raise BadRequest(f"{brief(key)} is no key that can be set; these are: {', '.join(KEYS)}")
    if key in MODES:
        check_mode(MODES[key], value if isinstance(value, str) else "")
        return str(value)
    if key == "exec.timeout":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= LONGEST_EXEC_S:
            raise BadRequest(f"{key} is a number of seconds from 1 to {LONGEST_EXEC_S:.0f}")
        return float(value)
    if not isinstance(value, str) or not is_profile(value):
        raise BadRequest(f"{key} is the name of a profile, or nothing")
    return value


class ServiceSettings:
    """The values of the keys, in a file in the service's *folder* and, of modes, in the queue."""

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
        """Each key with its value."""
        rules = self._queue.rules()
        with self._lock:
            return {**{key: rules.mode(category) for key, category in MODES.items()}, **DEFAULTS, **self._kept}

    def set(self, key: str, value: Any) -> None:
        found = check_setting(key, value)
        if key in MODES:
            self._queue.set_mode(MODES[key], str(found))
            return
        with self._lock:
            kept = {**self._kept, key: found}
            write_file(self._path, json.dumps(kept).encode(), "the settings of approvals")
            self._kept = kept
