"""
Access over TCP: login links that work once, sessions of browsers, tokens of programs.

Runs in:   the operator's program that decides. Any thread may call.
Holds:     the tables have only hashes of links, cookies and tokens. Each table is bounded: the oldest entry is dropped
           first.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

#: Lifetimes in seconds: of a login link, of a session without a request, of any session.
LINK_LASTS, IDLE_LASTS, SESSION_LASTS = 300.0, 8 * 3600.0, 24 * 3600.0

#: Entries of each table, at most.
MOST_LINKS, MOST_SESSIONS, MOST_TOKENS = 8, 16, 32

#: Characters of a token, at most; those made here have 43.
MOST_TOKEN = 128


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """
    A browser that has used a login link.

    Attributes:
        csrf: the token that each form and each change by the page has to send.
        begun: seconds of a monotonic clock.
        key: of the session in the table; no secret.
    """

    csrf: str
    begun: float
    key: str


class PageAccess:
    """
    The tables of login links, sessions and tokens.

    Args:
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._links: dict[str, float] = {}
        self._sessions: dict[str, tuple[BrowserSession, float]] = {}
        self._tokens: dict[str, None] = {}

    def login_token(self) -> str:
        """
        Make a login link.

        Returns:
            The link's token, which works once, within LINK_LASTS seconds.
        """
        token = secrets.token_urlsafe(32)
        with self._lock:
            _put(self._links, _key(token), self._clock() + LINK_LASTS, MOST_LINKS)
        return token

    def log_in(self, token: str) -> str | None:
        """
        Use a login link up.

        Returns:
            The cookie of a new session; None if there is no such link, or it was used or is too old.
        """
        now = self._clock()
        with self._lock:
            if len(token) > MOST_TOKEN or self._links.pop(_key(token), now) <= now:
                return None
            cookie = secrets.token_urlsafe(32)
            session = BrowserSession(secrets.token_urlsafe(32), now, _key(cookie))
            _put(self._sessions, session.key, (session, now), MOST_SESSIONS)
        return cookie

    def session(self, cookie: str) -> BrowserSession | None:
        """The session of *cookie*; None if there is none, or it has ended."""
        now = self._clock()
        if len(cookie) > MOST_TOKEN:
            return None
        with self._lock:
            found = self._sessions.pop(_key(cookie), None)
            if found is None or now - found[1] > IDLE_LASTS or now - found[0].begun > SESSION_LASTS:
                return None
            self._sessions[found[0].key] = found[0], now  # at the end of the table, since it was used last
        return found[0]

    def is_over(self, session: BrowserSession) -> bool:
        """Whether *session* was logged out or dropped, or has lasted too long."""
        with self._lock:
            return session.key not in self._sessions or self._clock() - session.begun > SESSION_LASTS

    def log_out(self, session: BrowserSession) -> None:
        with self._lock:
            self._sessions.pop(session.key, None)

    def program_token(self) -> str:
        """
        Make a bearer token for a program.

        Returns:
            The token; it works until this process ends or MOST_TOKENS newer ones were made.
        """
        token = secrets.token_urlsafe(32)
        with self._lock:
            _put(self._tokens, _key(token), None, MOST_TOKENS)
        return token

    def is_program(self, token: str) -> bool:
        """Whether *token* is a bearer token of this process."""
        with self._lock:
            return len(token) <= MOST_TOKEN and _key(token) in self._tokens


def _key(token: str) -> str:
    # The time of a look-up of a hash says nothing about the token.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _put(table: dict[str, Value], key: str, value: Value, most: int) -> None:
    while len(table) >= most:
        del table[next(iter(table))]
    table[key] = value
