"""
Fetches by a sandbox's policy, for both clients: the fields of a request, and the result of an answer.

Trust:     none in the daemon's bytes, nor in those of the fetched host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leeward.base.dataclass import dataclass
from leeward.client.arena import map_arenas, piece
from leeward.client.conversation import checked
from leeward.errors import FetchFailed, PeerError, RequestRejected
from leeward.wire.fetches import check_answer
from leeward.wire.replies import Reply

#: Header fields. Several fields of one name are several pairs.
Headers = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """
    The response to a fetch.

    Attributes:
        status: the status of the last response, such as 200.
        headers: pairs of name and value, in order; a name may occur more than once.
        body: the body as the host sent it. The request asks for no compression, and none is undone.
        url: the URL of the last response, in normal form.
        history: the URLs of the redirects before it.
        address: the address of the host that sent the last response.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    url: str
    history: tuple[str, ...]
    address: str

    @property
    def ok(self) -> bool:
        """Whether the status is 200 to 299."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as UTF-8, with U+FFFD for what is invalid."""
        return self.body.decode("utf-8", "replace")

    def header(self, name: str) -> str | None:
        """The value of the first field *name*, in any case; None if there is none."""
        return next((value for each, value in self.headers if each.lower() == name.lower()), None)


def fetch_fields(url: str, method: str, headers: Headers | None, body: bytes | str) -> dict[str, Any]:
    try:
        given = headers.items() if isinstance(headers, Mapping) else headers or ()
        pairs = [[name, value] for name, value in given]
        sent = body.encode() if isinstance(body, str) else bytes(memoryview(body))
    except (TypeError, ValueError) as error:
        raise RequestRejected(f"a fetch: {error}") from None
    return {"url": url, "method": method, **({"headers": pairs} if pairs else {}), **({"body": sent} if sent else {})}


def fetched_of(reply: Reply, descriptors: Sequence[int]) -> Fetched:
    """The response in *reply*; FetchFailed if there is none. Closes *descriptors* in any case."""
    arenas = map_arenas(descriptors, reply.arenas)
    answer = checked(check_answer, reply.ok or {})
    if "failed" in answer:
        raise FetchFailed(answer["message"], answer["failed"], answer["url"], answer["sent"])
    body = bytes(piece(checked(_place, (reply.ok or {}).get("body"), reply.arenas), arenas))
    return Fetched(answer["status"], tuple((name, value) for name, value in answer["headers"]), body, answer["url"],
                   tuple(answer["history"]), answer["address"])


def _place(value: object, sizes: Sequence[int]) -> bytes | tuple[int, int, int]:
    if isinstance(value, bytes):
        return value
    if isinstance(value, list) and value[:2] == [0, 0] and len(value) == 3 and list(sizes) == [value[2]]:
        return 0, 0, sizes[0]
    raise PeerError("a fetch's answer: its body is neither binary nor a place in a memory file")
