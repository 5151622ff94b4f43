"""
The first line of a connection, as far as it tells whether the connection is HTTP in the clear. Pure.

Why:       many names share one server, which takes the one that a request's head names. So a connection on which bytes
           pass unseen would lead to all names of its server, where the policy allows one.
In doubt:  it is HTTP: a head that the broker can't read is refused then. A line without a version of HTTP names no
           host, unless its target is a whole URL.
Bound:     a line of MAX_LINE bytes, of which a few are kept. The time for a piece depends on its length alone.
Source:    RFC 9112 §3: servers may take vertical tabs, form feeds and bare carriage returns as spaces; some take all
           that latin-1 has as one. The PROXY protocol, §2.2.
"""

from __future__ import annotations

import re

#: Bytes of a line, at most. Most servers take 8 to 64 KiB, those in Go 1 MiB; Envoy can be told to take 8.
MAX_LINE = 8 << 20

#: Bytes that some server takes for a space.
_SPACES = b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0"
_METHOD = re.compile(rb"[!#-'*+.0-9A-Z^-z|~-]*")
_VERSION = re.compile(rb"[\t\x0b-\r\x1c- \x85\xa0]HTTP/|\n", re.I)
_URL = re.compile(rb"[a-z][a-z0-9+.-]{0,30}://", re.I)

#: The first bytes of the PROXY protocol's version 2.
_PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n"


class FirstLine:
    """
    Reads a connection's first line in as many pieces as it comes.

        GET / HTTP/1.1    also after empty lines, with other or further spaces, and without a space at the end
        PRI * HTTP/2.0    the preface of HTTP/2
        GET http://a.org  HTTP/0.9
        PROXY TCP4 ...    by which a proxy tells a server whose connection it passes on; version 2 in bytes
    """

    def __init__(self) -> None:
        self._proxy: bytes | None = b""  # all bytes, as long as they may be those of _PROXY_2
        self._method, self._target, self._last = b"", b"", b""
        self._is_behind = False
        self._length = 0

    def feed(self, data: bytes) -> bool | None:
        """Whether the connection is HTTP, as soon as *data* tells; None if more bytes are needed to tell."""
        if self._proxy is not None:
            data = self._proxy + data
            if _PROXY_2.startswith(data[:len(_PROXY_2)]):
                self._proxy = data
                return True if len(data) >= len(_PROXY_2) else None
            self._proxy = None
        if not self._is_behind:
            data = data if self._method else data.lstrip(_SPACES)
            found = _METHOD.match(data)
            assert found is not None  # it matches nothing as well
            self._method = (self._method + found[0][:8])[:8]
            self._length += found.end()
            data = data[found.end():]
            if not data:
                return None if self._length <= MAX_LINE else False
            if not self._method or data[0] not in _SPACES or data[:1] == b"\n":
                return False
            if self._method.upper() == b"PROXY":
                return True
            self._is_behind = True
        self._length += len(data)
        if len(self._target) < 40:
            # What is behind the line is another one, in however many pieces both come.
            self._target = (self._target + data[:200].partition(b"\n")[0]).lstrip(_SPACES)[:40]
        line = self._last + data
        end = _VERSION.search(line)
        self._last = line[-5:]
        if _URL.match(self._target) or (end is not None and end[0] != b"\n"):
            return True
        return None if end is None and self._length <= MAX_LINE else False
