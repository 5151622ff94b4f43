"""
Secrets of one request: values for placeholders on the way to the host, placeholders for values on the way back. Pure.

Stands if: a placeholder is in another place than its secret may be in: there it is passed on unchanged.
Leaves:    values that the host returns in another form than those of `masks`. The host knows them.

Responses that could hide a value aren't requested, and are refused if they come: compressed bodies, parts of bodies (a
part may end within a value), and other protocols.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

import h11

from leeward.egress.exchanges import ResponseError
from leeward.egress.heads import Head, HeadError
from leeward.egress.masks import MaskedStream, Masks


class Swap:
    """Replaces byte strings, at each place the longest that matches, in a stream of pieces; holds back less than that."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._to = dict(pairs)
        needles = sorted(self._to, key=len, reverse=True)
        self._needles = needles
        self._longest = len(needles[0]) if needles else 0
        self._any = re.compile(b"|".join(map(re.escape, needles)) if needles else b"(?!)")
        self._first = re.compile(b"|".join(sorted({re.escape(needle[:1]) for needle in needles})) or b"(?!)")
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """Return *data* with all replacements made. It is complete by itself, not a piece of the stream."""
        return self._any.sub(lambda found: self._to[found[0]], data)

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the stream. Returns the output that is certain by now, and holds back the rest."""
        data = self._held + data
        said, at = [], 0
        while True:
            partial = self._partial_match(data, at)
            found = self._any.search(data, at)
            if found is None or found.start() >= partial:
                break
            said += [data[at:found.start()], self._to[found[0]]]
            at = found.end()
        self._held = data[partial:]
        return b"".join((*said, data[at:partial]))

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return self.whole(held)

    def _partial_match(self, data: bytes, at: int) -> int:
        """The first place from *at* on where a string to find begins that reaches beyond *data*; else *data*'s length."""
        for found in self._first.finditer(data, max(at, len(data) - self._longest + 1)):
            rest = data[found.start():]
            if any(len(needle) > len(rest) and needle.startswith(rest) for needle in self._needles):
                return found.start()
        return len(data)


#: Fields of a request that ask for responses that can't be searched; they are dropped.
_NOT_ASKED = (b"accept-encoding", b"range", b"if-range")

_BASIC = b"basic "


@dataclass(frozen=True, slots=True, repr=False)
class Known:
    placeholder: bytes  # the text that the sandbox has in place of the value
    value: bytes  # the secret itself, which the host gets
    places: tuple[str, ...]  # where in a request the placeholder is replaced; of `spec.egress_policy.PLACES`


class Searched:
    """The values that are looked for in responses: in bodies and fields, and in the names of fields."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self.masks, self.names = Masks(values), Masks(values, fold=True)


class Injection:
    """
    Puts the values of *secrets*, all for the request's host, into one request, and placeholders into its response.

    `head` is sent to the host; `body` replaces placeholders in the body, None if that is passed on unchanged. Raises
    HeadError if the request asks for another protocol, whose bytes couldn't be searched.
    """

    def __init__(self, head: Head, secrets: Sequence[Known], searched: Searched) -> None:
        if head.upgrade:
            raise HeadError("another protocol than HTTP couldn't be searched for the values of secrets", 501)
        self._sent: dict[bytes, bytes] = {}
        header = Swap((each.placeholder, each.value) for each in secrets if "header" in each.places)
        query = Swap((each.placeholder, quote(each.value, safe="").encode()) for each in secrets
                     if "query" in each.places)
        body = [(each.placeholder, each.value) for each in secrets if "body" in each.places]
        fields = [(name, self._field(name, value, header)) for name, value in head.fields if name not in _NOT_ASKED]
        fields.append((b"accept-encoding", b"identity"))
        self.body = Swap(body) if body and head.length != 0 else None
        if self.body is not None and head.length is not None:  # a value may have another length than its placeholder
            fields = [each for each in fields if each[0] != b"content-length"]
            fields.append((b"transfer-encoding", b"chunked"))
        path, mark, asked = head.target.partition("?")
        self.head = replace(head, target=path + mark + query.whole(asked.encode()).decode(), fields=tuple(fields))
        self._searched = searched
        self._instead = searched.masks.instead([each.placeholder for each in secrets])
        self._swap, self._stream = Swap(self._sent.items()), MaskedStream(searched.masks, self._instead)
        self._counts = head.method != "HEAD"

    def _field(self, name: bytes, value: bytes, swap: Swap) -> bytes:
        """The value of a field with secrets put in by *swap*. Credentials of RFC 7617 are decoded from base64 for it."""
        if name in (b"authorization", b"proxy-authorization") and value[:6].lower() == _BASIC:
            try:
                said = base64.b64decode(value[6:].strip(), validate=True)
            except binascii.Error:
                return value
            put = swap.whole(said)
            if put != said:
                made = base64.b64encode(put)
                self._sent[made] = value[6:].strip()
                return value[:6] + made
            return value
        return swap.whole(value)

    # --- the response ---------------------------------------------------------

    def response(self, event: h11.Event) -> h11.Event:
        """*event* of the response, as the sandbox gets it; `rest` has what is held back; or ResponseError."""
        if isinstance(event, h11.Data):
            return h11.Data(data=self._stream.feed(self._swap.feed(bytes(event.data))))
        if not isinstance(event, (h11.Response, h11.InformationalResponse)):
            return event
        final = isinstance(event, h11.Response)
        if isinstance(event, h11.Response):
            _check(event)
        fields = [(self._searched.names.whole(name, self._instead), self._field_value(value)) for name, value in event.headers
                  if not (final and self._counts and name == b"content-length" and event.status_code not in (204, 304))]
        return type(event)(status_code=event.status_code, headers=fields, reason=self._whole(event.reason))

    def _field_value(self, value: bytes) -> bytes:
        """Return the value of a field as `_whole` does. Where it was folded into lines, h11 has put a space at each fold."""
        masked = self._whole(value)
        if b" " in masked and self._whole(joined := masked.replace(b" ", b"")) != joined:
            raise ResponseError("the response has the value of a secret in a folded field")
        return masked

    def _whole(self, data: bytes) -> bytes:
        return self._searched.masks.whole(self._swap.whole(data), self._instead)

    def rest(self) -> h11.Data | None:
        """Return the bytes of the response's body that were held back, once the body has ended; None if there are none."""
        data = self._stream.feed(self._swap.end()) + self._stream.end()
        return h11.Data(data=data) if data else None


def _check(event: h11.Response) -> None:
    codings = [value.strip().lower() for name, value in event.headers if name == b"content-encoding"]
    if any(coding not in (b"", b"identity") for coding in codings):
        raise ResponseError("the response is compressed, which wasn't asked for, and can't be searched for values of"
                            " secrets")
    if event.status_code == 206:
        raise ResponseError("the response is a part, which wasn't asked for, and can't be searched for the values of"
                            " secrets")
