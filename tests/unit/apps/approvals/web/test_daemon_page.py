"""The page about the daemon: a tab of approvals, and all of `leeward ui`."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kit.approvals_page import BASE, PageService, ShownDaemon, as_caller, browser, tcp_client
from kit.approvals_pictures import daemon_look
from leeward.apps.approvals.web.application import ROUTES, VIEWED, viewing
from leeward.apps.approvals.web.gate import AskingSandbox, Operator, PageAccess


@pytest.fixture
def seen() -> Starlette:
    daemon = ShownDaemon("none")
    daemon.found = daemon_look(1_000_000.0)
    return viewing(daemon, PageAccess())


def test_it_shows_sandboxes_jobs_ends_connections_and_charts(seen: Starlette) -> None:
    shown = browser(seen)[0].get("/daemon").text

    for text in ("3, of 4 workers", "18,204, 12 failed", "2 h", "b7xw5e2k9m4q8r3t6y1u0i5o2p", "31.0 MiB of 512.0 MiB",
                 "job 18203", "timed_out", "limit time", "5.0 s", "lifetime", "socket:2", "files.example.net:443",
                 "domain not in allowlist", "received 47.0 KiB", "Jobs a second, all users: 36 now; the upper edge is 100"):
        assert text in shown, text
    assert 2 == shown.count("<svg viewBox=\"0 0 600 120\"")
    assert 5 == shown.count("<polyline")  # the rate, and of seconds two lines with a gap each


def test_part_of_it_is_drawn_anew(seen: Starlette) -> None:
    client, _ = browser(seen)

    part = client.get("/daemon", params={"part": "now"}).text

    assert part.strip() in client.get("/daemon").text
    assert "<html" not in part


def test_a_daemon_that_is_away_is_a_sentence(seen: Starlette) -> None:
    seen.state.parts.daemon.found = None

    answer = browser(seen)[0].get("/daemon")

    assert 200 == answer.status_code
    assert "no daemon answers" in answer.text
    assert "Last ends" not in answer.text


def test_no_route_of_the_viewer_changes_anything(seen: Starlette) -> None:
    """It has four, all of GET; whatever else approvals has isn't there, by no method."""
    assert {"/", "/daemon", "/login", "/static/{name}"} == {route.path for route in seen.routes}  # type: ignore[attr-defined]
    assert {"GET"} == {route.method for route in ROUTES if route.name in VIEWED}
    client, csrf = browser(seen)
    for route in ROUTES:
        path = route.path.replace("{id:int}", "1").replace("{sandbox}", "box").replace("{name}", "page.css")
        for method in ("POST", "PUT", "PATCH", "DELETE", "GET"):
            answer = client.request(method, path, headers={"X-CSRF-Token": csrf}, json={} if "GET" != method else None)
            assert (answer.status_code < 400) == ("GET" == method and route.name in VIEWED), (method, path)


def test_the_viewers_pages_have_nothing_to_decide(seen: Starlette) -> None:
    client, _ = browser(seen)

    assert "/daemon" == client.get("/").headers["location"]
    shown = client.get("/daemon").text
    assert all(word not in shown for word in ("<form", "/queue", "page.js", "csrf-token", "Approvals"))
    assert "leeward ui" in tcp_client(seen).get("/login").text
    assert "leeward approvals page" not in tcp_client(seen).get("/login").text


def test_nobody_sees_it_without_a_link(seen: Starlette) -> None:
    """A link works once; a session of another site's page, and another name of the host, don't."""
    answer = tcp_client(seen).get("/daemon")
    assert (303, "/login") == (answer.status_code, answer.headers["location"])
    token = seen.state.parts.access.login_token()
    assert [200, 403] == [tcp_client(seen).get("/login", params={"token": token}).status_code for _ in range(2)]
    client, _ = browser(seen)
    assert 403 == client.get("/daemon", headers={"Host": "example.org:3700"}).status_code
    assert 403 == client.get("/daemon", headers={"Sec-Fetch-Site": "cross-site"}).status_code
    assert 403 == TestClient(seen, base_url=BASE, client=("192.0.2.1", 1)).get("/login").status_code
    answer = client.get("/daemon")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "no-store" == answer.headers["cache-control"]


def test_the_tab_is_the_operators_alone(app: Starlette, service: PageService) -> None:
    service.daemon.found = daemon_look(1.0)
    assert 403 == TestClient(as_caller(app, AskingSandbox("box"))).get("/daemon").status_code
    shown = TestClient(as_caller(app, Operator("cli"))).get("/daemon").text
    assert "Last ends" in shown
