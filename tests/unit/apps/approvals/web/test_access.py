"""Links that work once, sessions that end, tokens, and how many of each there are."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette

from kit.approvals_page import BASE, browser, tcp_client
from leeward.apps.approvals.web.gate import (
    IDLE_LASTS,
    LINK_LASTS,
    MOST_LINKS,
    MOST_SESSIONS,
    MOST_TOKENS,
    SESSION_LASTS,
    PageAccess,
)


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def access(clock: Seconds) -> PageAccess:
    return PageAccess(clock)


def test_a_link_works_once_and_not_for_long(access: PageAccess, clock: Seconds) -> None:
    link, late = access.login_token(), access.login_token()
    assert access.log_in(link) is not None
    assert access.log_in(link) is None
    clock.now += LINK_LASTS
    assert access.log_in(late) is None
    for wrong in ("", "x", "x" * 10_000, "\ud800", "\0"):
        assert access.log_in(wrong) is None


def test_a_session_ends_by_itself(access: PageAccess, clock: Seconds) -> None:
    idle, used = access.log_in(access.login_token()), access.log_in(access.login_token())
    assert idle is not None
    assert used is not None
    first = access.session(used)
    assert first is not None
    while clock.now - 100.0 < SESSION_LASTS - IDLE_LASTS:
        clock.now += IDLE_LASTS - 1
        assert first == access.session(used)
        assert not access.is_over(first)
    assert access.session(idle) is None
    clock.now = 101.0 + SESSION_LASTS
    assert access.is_over(first)
    assert access.session(used) is None


def test_a_session_that_was_logged_out_is_over(access: PageAccess) -> None:
    cookie = access.log_in(access.login_token())
    assert cookie is not None
    session = access.session(cookie)
    assert session is not None
    access.log_out(session)

    assert access.is_over(session)
    assert access.session(cookie) is None
    for wrong in ("", "x", session.key, session.csrf, "x" * 10_000, "\udfff"):
        assert access.session(wrong) is None


def test_every_table_is_bounded_and_drops_the_oldest_first(access: PageAccess) -> None:
    links = [access.login_token() for _ in range(MOST_LINKS + 1)]
    assert [None] == [each for each in (access.log_in(links[0]),) if each is None]
    assert access.log_in(links[1]) is not None
    cookies = [access.log_in(access.login_token()) for _ in range(MOST_SESSIONS + 1)]
    assert access.session(cookies[0] or "") is None
    assert access.session(cookies[1] or "") is not None
    tokens = [access.program_token() for _ in range(MOST_TOKENS + 1)]
    assert [False, True] == [access.is_program(each) for each in tokens[:2]]
    assert not access.is_program("")


def test_c329_a_login_link_leads_in_once(app: Starlette) -> None:
    token = app.state.parts.access.login_token()
    client = tcp_client(app)
    assert 403 == client.head("/login", params={"token": token}).status_code
    assert not client.cookies

    first = client.get("/login", params={"token": token})

    assert (200, "") == (first.status_code, first.headers.get("location", ""))
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert 'content="0;url=/queue"' in first.text
    assert token not in first.text
    assert 200 == client.get("/queue").status_code
    again = tcp_client(app).get("/login", params={"token": token})
    assert 403 == again.status_code
    assert "set-cookie" not in again.headers


def test_logging_out_ends_the_session(app: Starlette) -> None:
    client, csrf = browser(app)
    cookie = client.cookies["leeward_3700"]
    assert 303 == client.post("/logout", data={"csrf": csrf}).status_code

    again = tcp_client(app, headers={"Cookie": f"leeward_3700={cookie}", "Origin": BASE})
    assert 303 == again.get("/queue").status_code
