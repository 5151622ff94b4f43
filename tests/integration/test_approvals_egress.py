"""Connections that only a rule of `ask` names, decided by the service for approvals: they go on, or hear why not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kit import egress
from kit.approvals import ServedApprovals
from kit.egress import Servers
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until
from leeward.apps.approvals.notifying import Notifier, NotifySettings
from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.queue import ApprovalQueue
from leeward.apps.approvals.queue.subjects import branch
from leeward.spec.outcome import Result

pytestmark = pytest.mark.needs("extra-web")

GET = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=60) as got:
            print(got.status)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().rstrip())
"""

CONFIG = """\
pool_size = 2
[egress.notify]
allow = ["http://hooks.example.org:{port}"]
addresses = ["127.0.0.1/32"]
[egress.web]
ask = ["http://*:{port}"]
addresses = ["127.0.0.1/32"]
limits = {{ ask = "60s" }}
"""


@pytest.fixture(scope="module")
def daemon(host: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with egress.live(tmp_path_factory.mktemp("d"), CONFIG.format(port=host.http)) as made:
        yield made


def test_a_connection_waits_for_a_person_or_a_rule(daemon: LiveDaemon, host: Servers, tmp_path: Path) -> None:
    """
    Approved, the same connection goes on; denied, by a person, by a rule or by a mode, it is answered by 403 with the
    reason. The record has all of it.
    """
    project = tmp_path / "project"
    project.mkdir()
    url = f"http://web.example.org:{host.http}/a?b=1"
    with ServedApprovals(daemon, tmp_path) as service, ThreadPoolExecutor() as threads:
        poll_until(lambda: not service.connection.call("GET", "/api/status")["asks"], "a service that hears of asks")
        box = service.open(project, egress="web")

        def waiting() -> tuple[int, Future[Result]]:
            asks = threads.submit(box.run, ["python3", "-c", GET, url], timeout=90)
            poll_until(service.pending, "a connection that waits")
            [row] = service.pending()
            assert {"host": "web.example.org", "port": host.http} == row["subject"]
            assert f"GET {url}" in row["description"]
            assert box.id == row["sandbox"]
            return row["id"], asks

        number, asks = waiting()
        service.decide(number)
        assert "200\n" == asks.result(60).stdout_text
        number, asks = waiting()
        service.decide(number, "deny")
        assert f"403 Denied by leeward (request {number})\n" == asks.result(60).stdout_text

        service.run("deny-rule", "network(web.example.org)")
        assert "403 Blocked by rule\n" == box.run(["python3", "-c", GET, url], timeout=60).stdout_text
        service.run("remove-rule", "network(web.example.org)")
        service.connection.call("PUT", "/api/config", {"key": "mode.network", "value": "deny-all"})
        assert "403 Blocked by policy\n" == box.run(["python3", "-c", GET, url], timeout=60).stdout_text
        service.connection.close_sandbox(box.detach())

        wanted = {("connect", "approved", "cli"), ("connect", "denied", "cli"), ("connect", "denied", "rule"),
                ("connect", "denied", "mode"), ("egress", "approved", "policy"), ("egress", "denied", "policy")}

        def seen() -> set[tuple[str, str, str]]:
            return {(row["action"], row["decision"], row["by"]) for row in service.audit()
                    if row["sandbox"] == box.id and row["category"] == "network"}
        poll_until(lambda: wanted <= seen(), "lines of the record, which a thread writes")


def test_a_webhook_is_told_of_requests_by_the_operators_policy(daemon: LiveDaemon, host: Servers, tmp_path: Path) -> None:
    said = list[str]()
    with contextlib.closing(ApprovalQueue(str(tmp_path))) as queue:
        for name, failure in (("hooks", []), ("other", ["notify: the webhook isn't reached: unlisted"])):
            url, address = f"http://{name}.example.org:{host.http}/secret", f"{name}.example.org:{host.http}"
            with contextlib.closing(Notifier(queue, NotifySettings(urls=(url,)), str(daemon.socket), said.append)):
                queue.submit(NewRequest(branch(name), "push", sandbox="box"))
                poll_until(lambda address=address: said or ("POST", address, "/secret") in host.seen, "the webhook is told")
            assert failure == said
