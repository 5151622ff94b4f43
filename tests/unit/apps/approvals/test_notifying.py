"""What the operator hears of requests that wait, where no page is open."""

from __future__ import annotations

import json
import queue as queues
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leeward.apps.approvals import notifying
from leeward.apps.approvals.notifying import Notifier, NotifySettings, parse_notify, summary
from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch, endpoint
from leeward.errors import BadRequest, FetchFailed

PATIENCE = 10
URL = "https://hooks.example.org/secret"


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ApprovalQueue]:
    made = ApprovalQueue(str(tmp_path))
    yield made
    made.close()


class Broker:
    """Stands for the sandbox by which the daemon's broker is asked; *answer* is a status or an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: int | Exception = 200) -> None:
        self.sent: queues.Queue[tuple[Any, ...]] = queues.Queue()
        self.answer = answer
        monkeypatch.setattr(notifying, "Sandbox", self._opened)
        monkeypatch.setattr(notifying, "GATHER_S", 0.0)
        monkeypatch.setattr(notifying, "PAUSE_S", 0.0)

    def _opened(self, **options: Any) -> Any:
        self._options = options
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def fetch(self, url: str, method: str, headers: dict[str, str], body: str) -> Any:
        self.sent.put((self._options, url, method, headers, body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(status=self.answer, ok=self.answer < 300)


def test_a_request_is_told_by_numbers_and_categories_alone(queue: ApprovalQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the operator's policy."""
    broker = Broker(monkeypatch)
    notifier = Notifier(queue, NotifySettings(urls=(URL,), egress="out"), "/the/socket")
    queue.submit(NewRequest(branch("x"), "push", sandbox="box"))
    queue.submit(NewRequest(endpoint("evil.example.org", 443), "connect", sandbox="box"))
    options, url, method, headers, body = broker.sent.get(timeout=PATIENCE)
    notifier.close()
    assert ({"socket": "/the/socket", "egress": "out", "held": True}, URL, "POST") == (options, url, method)
    assert {"Content-Type": "application/json"} == headers
    told = json.loads(body)
    assert "evil" not in body
    assert 1 <= told["pending"] == sum(told["categories"].values())
    assert told["text"].startswith("leeward: ")


def test_failures_are_told_once_and_without_the_url(queue: ApprovalQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    broker = Broker(monkeypatch)
    notifier = Notifier(queue, NotifySettings(urls=(URL,)), say=said.append)
    notifier.close()
    for answer in (500, 500, FetchFailed(f"no host at {URL}", "dns"), BadRequest("egress 'notify' is unknown")):
        broker.answer = answer
        notifier.tell({"git": 1})
    assert ["notify: the webhook answers with 500", "notify: the webhook isn't reached: dns",
            "notify: egress 'notify' is unknown"] == said


def test_the_desktop_shows_it(queue: ApprovalQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, program = list[str](), tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/shown\n')
    program.chmod(0o700)
    notifier = Notifier(queue, NotifySettings(desktop=True), say=said.append)
    notifier.close()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    notifier.tell({"git": 2, "exec": 0, "network": 1})
    assert ["--app-name=leeward", "A request waits", "3 requests wait: 2 git, 1 network"] == (
        tmp_path / "shown").read_text().splitlines()
    assert [] == said
    program.write_text("#!/bin/sh\nexit 1\n")
    notifier.tell({"git": 1})
    monkeypatch.setenv("PATH", "/nowhere")
    notifier.tell({"git": 1})
    assert ["notify: notify-send: CalledProcessError",
            "notify: there is no program notify-send, which shows notifications of the desktop"] == said


def test_one_request_waits() -> None:
    assert "1 request waits: 1 exec" == summary({"exec": 1, "git": 0})


@pytest.mark.parametrize(("value", "found"), [
    ("desktop", NotifySettings(desktop=True)), (URL, NotifySettings(urls=(URL,))),
    (["desktop", URL, URL], NotifySettings(True, (URL,)))])
def test_settings_are_words_and_urls(value: object, found: NotifySettings) -> None:
    assert found == parse_notify(value, "notify")


@pytest.mark.parametrize(("value", "egress"), [
    (True, "notify"), ("mail", "notify"), (["ftp://a"], "notify"), ([1], "notify"), ({}, "notify"), (URL, ""), (URL, 1)])
def test_what_is_no_setting_is_refused(value: object, egress: object) -> None:
    with pytest.raises(BadRequest, match="notify"):
        parse_notify(value, egress)
