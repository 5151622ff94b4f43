"""
Secrets of one request: values for placeholders on the way to the host, placeholders for values on the way back.

Runs in:   the broker; pure.
Stands if: a placeholder is in another place than its secret may be in: there it is passed on unchanged.
Leaves:    values that the host returns in another form than those here. The host knows them.

Everything in which a response could hide a value isn't requested, and is refused: compressed bodies, parts of bodies (a
part may end within a value), and other protocols.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import quote

import h11

from leeward.egress.exchanges import ResponseError
from leeward.egress.heads import Head, HeadError
from leeward.egress.swap import Swap

#: Fields of a request that ask for responses that can't be searched.
_NOT_ASKED = (b"accept-encoding", b"range", b"if-range")

_BASIC = b"basic "


@dataclass(frozen=True, slots=True, repr=False)
class Known:
    """
    A secret for a request's host.

    Attributes:
        placeholder: what the sandbox has.
        value: what the host gets.
        places: of `spec.egress.PLACES`.
    """

    placeholder: bytes
    value: bytes
    places: tuple[str, ...]


class Injection:
    """
    Args:
        head: the request's, as it came.
        secrets: those for its host.

    Attributes:
        head: as it goes on.
        body: for the request's body; None where it goes on as it is.
    """

    def __init__(self, head: Head, secrets: Iterable[Known]) -> None:
        if head.upgrade:
            raise HeadError("another protocol than HTTP couldn't be searched for the values of secrets", 501)
        secrets = tuple(secrets)
        self._back: dict[bytes, bytes] = {}
        for each in secrets:
            for form in _forms(each.value):
                self._back.setdefault(form, each.placeholder)
        header = Swap((each.placeholder, each.value) for each in secrets if "header" in each.places)
        query = Swap((each.placeholder, quote(each.value, safe="").encode()) for each in secrets
                     if "query" in each.places)
        body = [(each.placeholder, each.value) for each in secrets if "body" in each.places]
        fields = [(name, self._field(name, value, header)) for name, value in head.fields if name not in _NOT_ASKED]
        fields.append((b"accept-encoding", b"identity"))
        self.body = Swap(body) if body and head.length != 0 else None
        if self.body is not None and head.length is not None:  # which it won't have any more
            fields = [each for each in fields if each[0] != b"content-length"]
            fields.append((b"transfer-encoding", b"chunked"))
        path, mark, asked = head.target.partition("?")
        self.head = replace(head, target=path + mark + query.whole(asked.encode()).decode(), fields=tuple(fields))
        self._swap = Swap(self._back.items())
        self._lower = Swap((form.lower(), to) for form, to in self._back.items())
        self._counts = head.method != "HEAD"

    def _field(self, name: bytes, value: bytes, swap: Swap) -> bytes:
        """
        One with credentials of RFC 7617 has them in base64: they are put in there, too.
        """
        if name in (b"authorization", b"proxy-authorization") and value[:6].lower() == _BASIC:
            try:
                said = base64.b64decode(value[6:].strip(), validate=True)
            except binascii.Error:
                return value
            put = swap.whole(said)
            if put != said:
                made = base64.b64encode(put)
                self._back[made] = value[6:].strip()
                return value[:6] + made
            return value
        return swap.whole(value)

    # --- the response ---------------------------------------------------------

    def response(self, event: h11.Event) -> h11.Event:
        """
        An event of the response, as the sandbox is to see it. More may follow by `rest`.

        Raises:
            ResponseError: it couldn't be searched.
        """
        if isinstance(event, h11.Data):
            return h11.Data(data=self._swap.feed(bytes(event.data)))
        if not isinstance(event, (h11.Response, h11.InformationalResponse)):
            return event
        final = isinstance(event, h11.Response)
        if isinstance(event, h11.Response):
            _check(event)
        fields = [(self._lower.whole(name), self._swap.whole(value)) for name, value in event.headers
                  if not (final and self._counts and name == b"content-length" and event.status_code not in (204, 304))]
        return type(event)(status_code=event.status_code, headers=fields, reason=self._swap.whole(event.reason))

    def rest(self) -> h11.Data | None:
        """
        The rest of the response's body, at its end.
        """
        data = self._swap.end()
        return h11.Data(data=data) if data else None


def _check(event: h11.Response) -> None:
    codings = [value.strip().lower() for name, value in event.headers if name == b"content-encoding"]
    if any(coding not in (b"", b"identity") for coding in codings):
        raise ResponseError("the response is compressed, which wasn't asked for, and can't be searched for values of"
                            " secrets")
    if event.status_code == 206:
        raise ResponseError("the response is a part, which wasn't asked for, and can't be searched for the values of"
                            " secrets")


def _forms(value: bytes) -> list[bytes]:
    """
    The forms of a value: unchanged, URL-encoded, form-encoded, and in JSON.
    """
    return list(dict.fromkeys((value, quote(value, safe="").encode(), quote(value, safe="/").encode(),
                               quote(value, safe="").replace("%20", "+").encode(),
                               json.dumps(value.decode())[1:-1].encode())))
