"""Every route, from the tables: who may call it, and what it answers to a stranger and to a sandbox."""

from __future__ import annotations

import itertools
import json
from inspect import Parameter, signature

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from kit.approvals_page import BASE, PageService, as_caller, browser, tcp_client
from leeward.apps.approvals.carrying.asking import COMMON, OWN, parse_request
from leeward.apps.approvals.web.application import ROUTES, document
from leeward.apps.approvals.web.gate import AskingSandbox, Operator
from leeward.apps.approvals.web.problems import WebProblem
from leeward.apps.approvals.web.routes import WebRoute
from leeward.base.dataclass import MISSING
from leeward.errors import BadRequest

#: `live` alone stays open.
ALL = [route for route in ROUTES if "WEBSOCKET" != route.method]
API = [route for route in ALL if not route.page]


def path_of(route: WebRoute, number: int = 1) -> str:
    return route.path.replace("{id:int}", str(number)).replace("{sandbox}", "box").replace("{name}", "page.css")


def by_name(route: WebRoute) -> str:
    return f"{route.method} {route.path}"


def test_what_decides_is_the_operators_alone() -> None:
    """A route that says otherwise has to be noticed here."""
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES) == len({route.name for route in ROUTES})
    assert {route.name for route in ROUTES if "asks" == route.who} == {
        "status", "requests", "ask", "request", "config", "propose", "exec", "run", "packages", "sync_files",
        "sync_git", "openapi"}
    assert {"login_page", "static_file"} == {route.name for route in ROUTES if "anyone" == route.who}


def test_a_handler_takes_the_checked_fields_of_its_route() -> None:
    """Those that may be left out have a default; a field that may be is no more needed by the handler than by the route."""
    for route in ALL:
        taken = dict(list(signature(route.handler).parameters.items())[1:])
        given = {name: field for name, field in route.fields.items() if field.check.read is not None}

        assert set(given) == set(taken), by_name(route)
        for name, field in given.items():
            may_lack = field.operator or field.only is not None
            assert may_lack == (taken[name].default is not Parameter.empty), (by_name(route), name)


def test_each_field_is_checked_and_described() -> None:
    """The default of a field is one of its values; what has none, and isn't left to another field, has to be given."""
    for name, field in itertools.chain(*(route.fields.items() for route in ROUTES)):
        assert field.about, name
        if field.check.read is None:
            continue
        if field.default is MISSING:
            with pytest.raises(WebProblem):
                field.read({}, name)
        elif field.default is not None:
            assert field.default == field.check.read(field.default, name)
        with pytest.raises(WebProblem):
            field.read({name: object()}, name) if "value" != name else field.read({}, name)


def test_c326_a_sandbox_reaches_only_the_routes_that_ask(app: Starlette, service: PageService) -> None:
    service.ask({"category": "network", "host": "example.org"}, "other")
    client = TestClient(as_caller(app, AskingSandbox("box")), follow_redirects=False)
    for route in ALL:
        answer = client.request(route.method, path_of(route), json={} if route.method != "GET" else None)

        if "asks" == route.who:
            assert 403 != answer.status_code, by_name(route)
        else:
            assert (200 if "anyone" == route.who else 403) == answer.status_code, by_name(route)
    assert {"pending"} == {each.status for each in service.queue.recent()}


def test_c329_no_client_is_served_by_tcp_without_a_session(app: Starlette, service: PageService) -> None:
    service.ask({"category": "network", "host": "example.org"}, "box")
    client = tcp_client(app)
    wrong = ({}, {"Cookie": "leeward_3700=x"}, {"Authorization": "Bearer x"}, {"Authorization": "Basic eDp4"})
    for route, headers in itertools.product(ALL, wrong):
        answer = client.request(route.method, path_of(route), headers={"Origin": BASE, **headers},
                                json={} if route.method != "GET" else None)
        if "anyone" == route.who:
            assert 200 == answer.status_code
        elif not route.page:
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

    assert {route.name for route in API} == set(operations)
    for route in API:
        operation = operations[route.name]
        assert [str(route.status)] == [status for status in operation["responses"] if status.startswith("2")]
        if "GET" == route.method:
            assert set(route.fields) == {each["name"] for each in operation.get("parameters", ()) if "query" == each["in"]}
        else:
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            assert list(route.fields) == list(body["properties"])
            assert {name for name, field in route.fields.items() if field.is_needed} == set(body["required"])
    assert {"type": "integer", "minimum": 1, "maximum": 500, "default": 50} == {
        name: value for each in operations["requests"]["parameters"] if "limit" == each["name"]
        for name, value in each["schema"].items() if "description" != name}
    json.dumps(described)


def test_the_fields_of_a_new_request_are_those_that_its_categories_have() -> None:
    """One that isn't is refused by the name, so the description would lie about it."""
    ask = next(route for route in API if "ask" == route.name)
    with pytest.raises(BadRequest, match="no such fields of this request: host, zzz"):
        parse_request({"category": "git", "host": "a", "zzz": 1}, None)
    assert {*COMMON, *itertools.chain(*OWN.values())} == set(ask.fields)
