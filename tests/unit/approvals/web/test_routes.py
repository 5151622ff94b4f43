"""Every route, from the tables: who may call it, and what it answers to a stranger and to a sandbox."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from kit.approvals_page import BASE, PageService, as_caller, browser, tcp_client
from kit.features import ROOT
from leeward.approvals.credentials import AskingSandbox, Operator
from leeward.approvals.routes import ROUTES, ServiceRoute
from leeward.approvals.web import api, pages
from leeward.approvals.web.openapi import BODIES, QUERIES, document

ALL = [route for route in (*ROUTES, *pages.PAGES) if "WEBSOCKET" != route.method]


def path_of(route: ServiceRoute, number: int = 1) -> str:
    return route.path.replace("{id:int}", str(number)).replace("{sandbox}", "box").replace("{name}", "page.css")


def by_name(route: ServiceRoute) -> str:
    return f"{route.method} {route.path}"


def test_every_route_has_a_function_and_every_function_a_route() -> None:
    named = {route.name for route in ROUTES if "WEBSOCKET" != route.method}

    assert named == {*api.HANDLERS, "openapi"}
    assert {route.name for route in pages.PAGES} == set(pages.HANDLERS)
    assert len({(route.method, route.path) for route in ALL}) == len(ALL)
    # What decides is the operator's alone; a row that says otherwise has to be noticed here.
    assert {route.name for route in ROUTES if route.asks} == {
        "status", "requests", "ask", "request", "config", "propose", "exec", "run", "packages", "sync_files",
        "sync_git", "openapi"}
    assert ("login_page", "static_file") == pages.FOR_ANYONE


def test_c326_a_sandbox_reaches_only_the_routes_that_ask(app: Starlette, service: PageService) -> None:
    service.ask({"category": "network", "host": "example.org"}, "other")
    client = TestClient(as_caller(app, AskingSandbox("box")), follow_redirects=False)
    for route in ALL:
        answer = client.request(route.method, path_of(route), json={} if route.method != "GET" else None)

        if route.asks:
            assert 403 != answer.status_code, by_name(route)
        else:
            assert (200 if route.name in pages.FOR_ANYONE else 403) == answer.status_code, by_name(route)
    assert {"pending"} == {each.status for each in service.queue.recent()}


def test_c329_no_client_is_served_by_tcp_without_a_session(app: Starlette, service: PageService) -> None:
    service.ask({"category": "network", "host": "example.org"}, "box")
    client = tcp_client(app)
    wrong = ({}, {"Cookie": "leeward_3700=x"}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp4"})
    for route, headers in itertools.product(ALL, wrong):
        answer = client.request(route.method, path_of(route), headers={"Origin": BASE, **headers},
                                json={} if route.method != "GET" else None)
        if route.name in pages.FOR_ANYONE:
            assert 200 == answer.status_code
        elif route in ROUTES:
            assert (401, "unauthorized") == (answer.status_code, answer.json()["error"]), by_name(route)
        else:
            assert (303, "/login") == (answer.status_code, answer.headers["location"]), by_name(route)
    assert "pending" == service.queue.recent()[0].status


def test_c327_no_change_without_the_sessions_token_or_from_elsewhere(app: Starlette, service: PageService) -> None:
    service.ask({"category": "network", "host": "example.org"}, "box")
    client, csrf = browser(app)
    changes = [route for route in ALL if route.method != "GET"]
    good = {"X-CSRF-Token": csrf}
    for route, headers in itertools.product(changes, (
            {}, {"X-CSRF-Token": "x"}, {"X-CSRF-Token": csrf[:-1]}, {**good, "Origin": "http://example.org"},
            {**good, "Origin": "null"}, {**good, "Origin": "http://127.0.0.1:8080"},
            {**good, "Sec-Fetch-Site": "same-site"}, {**good, "Sec-Fetch-Site": "cross-site"})):
        answer = client.request(route.method, path_of(route), headers=headers, json={})
        assert 403 == answer.status_code, (by_name(route), headers)
    del client.headers["Origin"]
    for route in changes:
        assert 403 == client.request(route.method, path_of(route), headers=good, json={}).status_code
    assert "pending" == service.queue.recent()[0].status
    assert not any(rule.text != "network(*.datadoghq.com)" for rule in service.queue.rules().deny)


def test_c328_no_foreign_host_name_is_served(app: Starlette) -> None:
    client, csrf = browser(app)
    for host in ("example.org:3700", "127.0.0.1:8080", "127.0.0.1", "127.0.0.1.example.org:3700", "0.0.0.0:3700", "",
                 "localhost:3700, x", "[::ffff:127.0.0.1]:3700"):
        for route in ALL:
            answer = client.request(route.method, path_of(route), headers={"Host": host, "X-CSRF-Token": csrf})
            assert 403 == answer.status_code, (by_name(route), host)


def test_every_answer_has_the_security_headers(app: Starlette) -> None:
    client, csrf = browser(app)
    logout = [route for route in ALL if "logout_form" == route.name]
    for route in [route for route in ALL if route not in logout] + logout:
        answer = client.request(route.method, path_of(route), headers={"X-CSRF-Token": csrf})

        rules = answer.headers["content-security-policy"]
        assert "default-src 'none'" in rules
        assert "unsafe" not in rules
        assert "frame-ancestors 'none'" in rules
        assert "nosniff" == answer.headers["x-content-type-options"]
        assert answer.headers["cache-control"] == ("no-cache" if "static_file" == route.name else "no-store")


def test_a_listener_that_is_not_loopback_serves_no_client(app: Starlette) -> None:
    for base, client in ((BASE, ("192.0.2.1", 1)), ("http://192.0.2.1:3700", ("127.0.0.1", 1))):
        found = TestClient(app, base_url=base, client=client).get("/login")
        assert 403 == found.status_code


def test_a_websocket_is_for_the_operator_and_the_services_own_pages(app: Starlette) -> None:
    client, _ = browser(app)
    refused = [(client, {"Origin": "http://example.org"}), (client, {"Origin": "http://127.0.0.1:8080"}),
               (client, {"Host": "example.org:3700"}), (tcp_client(app), {"Origin": BASE}),
               (TestClient(as_caller(app, AskingSandbox("box"))), {})]
    for who, headers in refused:
        with pytest.raises(WebSocketDisconnect) as raised, who.websocket_connect("/api/live", headers=headers):
            pass
        assert 1008 == raised.value.code
    with client.websocket_connect("ws://127.0.0.1:3700/api/live") as socket:
        assert "init" == socket.receive_json()["type"]
    with TestClient(as_caller(app, Operator("cli"))).websocket_connect("/api/live") as socket:
        assert "init" == socket.receive_json()["type"]


def test_a_program_comes_in_by_a_token(app: Starlette) -> None:
    operator = TestClient(as_caller(app, Operator("cli")))
    token = operator.post("/api/tokens", json={}).json()["token"]
    program = tcp_client(app, headers={"Authorization": f"Bearer {token}"})

    assert 200 == program.get("/api/status").status_code
    assert 201 == program.post("/api/rules", json={"rule": "git(main)", "effect": "deny"}).status_code
    assert 403 == program.get("/api/status", headers={"Host": "example.org"}).status_code


def test_the_description_has_every_route() -> None:
    described = document()
    operations = {operation["operationId"]: operation
                  for methods in described["paths"].values() for operation in methods.values()}

    assert {route.name for route in ROUTES if "WEBSOCKET" != route.method} == set(operations)
    assert {*BODIES, *QUERIES} <= set(operations)
    for route in ROUTES:
        if route.method in ("POST", "PUT", "DELETE") and "close_sandbox" != route.name:
            assert "requestBody" in operations[route.name], route.name
    json.dumps(described)


def test_the_document_has_every_route() -> None:
    """With whether a sandbox may call it."""
    text = (ROOT / "docs" / "approvals.md").read_text()
    named = {(method, path): asks for method, path, asks in re.findall(r"^\| `([A-Z]+) (/api[^`]*)` \| (yes|) \|", text,
                                                                       re.MULTILINE)}

    assert named == {(route.method.replace("WEBSOCKET", "GET"), route.path.replace(":int", "")): "yes" * route.asks
                     for route in ROUTES}
