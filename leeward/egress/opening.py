"""
The first line of a connection, as far as it tells whether the connection is HTTP in the clear.

Runs in:   the broker; pure.
Why:       many names share one server, which takes the one that a request's head names. So a connection on which bytes
           pass unseen would lead to all names of its server, where the policy allows one.
In doubt:  it is HTTP: a head that the broker can't read is refused then. A line without a version of HTTP names no host,
           unless its target is a whole URL.
Bound:     a line of MAX_LINE bytes, of which a few are kept. The time for a piece depends on its length alone.
"""

from __future__ import annotations

import re

#: Bytes of a line, at most. Servers take lines of 8 to 64 KiB.
MAX_LINE = 65536

_METHOD = re.compile(rb"[!#-'*+.0-9A-Z^-z|~-]*")
_VERSION = re.compile(rb"[ \t]HTTP/|\n", re.I)
_URL = re.compile(rb"[a-z][a-z0-9+.-]{0,30}://", re.I)


class FirstLine:
    """
    Reads a connection's first line in as many pieces as it comes.

        GET / HTTP/1.1    also after empty lines, with further spaces or tabs between, and without a space at the end
        PRI * HTTP/2.0    the preface of HTTP/2
        GET http://a.org  HTTP/0.9
        PROXY TCP4 ...    by which a proxy tells a server whose connection it passes on
    """

    def __init__(self) -> None:
        self._method, self._target, self._last = bytearray(), b"", b""
        self._length = 0

    def feed(self, data: bytes) -> bool | None:
        """Whether the connection is HTTP, as soon as *data* tells; None if more bytes are needed to tell."""
        if not self._length:
            if not self._method:
                data = data.lstrip(b"\r\n\t ")
            found = _METHOD.match(data)
            assert found is not None  # it matches nothing as well
            self._method += found[0]
            if len(self._method) > MAX_LINE:
                return False
            data = data[found.end():]
            if not data:
                return None
            if data[:1] not in (b" ", b"\t") or not self._method:
                return False
            if self._method.upper() == b"PROXY":
                return True
        self._length += len(data)
        if len(self._target) < 40:
            self._target = (self._target + data[:200]).lstrip(b" \t")[:40]
        line = self._last + data
        end = _VERSION.search(line)
        self._last = line[-5:]
        if _URL.match(self._target) or (end is not None and end[0] != b"\n"):
            return True
        return None if end is None and self._length <= MAX_LINE else False
