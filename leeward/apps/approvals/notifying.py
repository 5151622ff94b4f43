"""
Tells the operator that requests wait: by a notification of the desktop, and by a request to a URL
(a webhook), which the daemon's broker sends by a policy of the operator's.

Holds:     what is told has numbers and categories alone, and no text of a sandbox.
Threads:   the queue calls `_changed`; one thread gathers what comes together, and tells it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from leeward.apps.approvals.queue.approval_request import ApprovalRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, FetchFailed, LeewardError

#: Seconds in which requests that follow each other are gathered, between two notifications, and that a program may take.
GATHER_S, PAUSE_S, _PROGRAM_S = 2.0, 10.0, 10.0
#: The word for a notification of the desktop, and the policy of egress that sends to a URL, unless another is named.
DESKTOP, POLICY = "desktop", "notify"


@dataclass(frozen=True, slots=True)
class NotifySettings:
    desktop: bool = False
    urls: tuple[str, ...] = ()  # http or https
    egress: str = POLICY  # the policy of the daemon's configuration by which `urls` are reached


def parse_notify(value: object, egress: object) -> NotifySettings:
    """The settings in `notify`, a text or an array of texts, and `notify_egress`; BadRequest if they are none."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(word == DESKTOP or (isinstance(word, str) and word.startswith(
            ("http://", "https://")) and len(word) <= 8192) for word in words):
        raise BadRequest(f'notify is "{DESKTOP}", the URL of a webhook, or an array of these')
    if not isinstance(egress, str) or not egress:
        raise BadRequest("notify_egress is the name of a policy of the daemon's configuration")
    return NotifySettings(DESKTOP in words, tuple(dict.fromkeys(word for word in words if word != DESKTOP)), egress)


def summary(counts: Mapping[str, int]) -> str:
    """One line about the requests that wait, by category."""
    total = sum(counts.values())
    each = ", ".join(f"{number} {category}" for category, number in counts.items() if number)
    return f"{total} request{'s' * (total != 1)} wait{'s' * (total == 1)}: {each}"


class Notifier:
    """Tells of new requests of *queue* until `close`. *daemon* is the daemon's socket; *say* shows a failure, once each."""

    def __init__(self, queue: ApprovalQueue, settings: NotifySettings, daemon: str | None = None,
                 say: Callable[[str], None] = lambda line: print(f"leeward approvals: {line}", file=sys.stderr)) -> None:
        self._queue, self._settings, self._daemon, self._say = queue, settings, daemon, say
        self._new, self._over, self._said = threading.Event(), threading.Event(), set[str]()
        self._end = queue.subscribe(self._changed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end()
        self._over.set()
        self._new.set()

    def _changed(self, request: ApprovalRequest) -> None:
        if request.status == "pending":
            self._new.set()

    def _run(self) -> None:
        while self._new.wait() and not self._over.wait(GATHER_S):
            self._new.clear()
            try:
                counts = self._queue.counts()
            except LeewardError:
                return  # the service ends
            if sum(counts.values()):
                self.tell(counts)
            if self._over.wait(PAUSE_S):
                return

    def tell(self, counts: Mapping[str, int]) -> None:
        if self._settings.desktop:
            self._show(summary(counts))
        for url in self._settings.urls:
            self._send(url, json.dumps({"text": f"leeward: {summary(counts)}", "pending": sum(counts.values()),
                                        "categories": dict(counts)}))

    def _show(self, text: str) -> None:
        program = shutil.which("notify-send")
        if program is None:
            self._fail("notify: there is no program notify-send, which shows notifications of the desktop")
            return
        try:
            subprocess.run([program, "--app-name=leeward", "A request waits", text], stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_PROGRAM_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            self._fail(f"notify: notify-send: {type(error).__name__}")

    def _send(self, url: str, body: str) -> None:
        """Send *body* to *url*, which may be a secret, and isn't shown."""
        try:
            with Sandbox(socket=self._daemon, egress=self._settings.egress, held=True) as box:
                got = box.fetch(url, "POST", {"Content-Type": "application/json"}, body)
            if not got.ok:
                self._fail(f"notify: the webhook answers with {got.status}")
        except FetchFailed as error:
            self._fail(f"notify: the webhook isn't reached: {error.cause}")
        except LeewardError as error:
            self._fail(f"notify: {error}")

    def _fail(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)
