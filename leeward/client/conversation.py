"""
The state of the protocol on one connection: ids, replies, descriptors. It owns received descriptors until a caller
takes them.

Trust:     none in the daemon's bytes; see wire/replies.py.

Replies come in any order, and are matched by id. Descriptors come in the stream beside the bytes of their frame, and
the kernel keeps that order: each frame that announces memory files takes the first descriptors of the queue.
"""

from __future__ import annotations

import os

from leeward.errors import BY_KIND, BadReply, PeerError, Refused, RequestRejected, quoted
from leeward.wire.frames import MAX_REPLY, VERSION, FrameReader, decode, encode, frame, pack
from leeward.wire.replies import parse_reply
from leeward.wire.template import parse_by_template

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, ParamSpec, TypeVar

    from leeward.wire.replies import Reply

    Answer = tuple[Reply, list[int]]  # a reply, and its descriptors, which the caller owns
    P = ParamSpec("P")
    T = TypeVar("T")

#: Descriptors that one read can bring; the kernel itself stops at 253.
MAX_DESCRIPTORS = 16


def refusal(reply: Reply) -> Refused:
    kind = BY_KIND.get(reply.kind)
    if kind is None:
        error = Refused(reply.message, reply.retry_after)
        error.kind = reply.kind
        error.may_have_run = True  # such as "internal", the refusal of a result that can't be sent
        return error
    if reply.kind == "sandbox_over" and reply.error is not None:
        from leeward.wire.sandbox_replies import over  # only for sandboxes

        return over(reply.message, reply.error)
    return kind(reply.message, reply.retry_after)


def answered(answer: Answer) -> Answer:
    """*answer*; a refusal is raised."""
    if answer[0].ok is None:
        raise refusal(answer[0])
    return answer


def checked(read: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """The result of *read*, a decoder of an answer, whose PeerError becomes BadReply."""
    try:
        return read(*args, **more)
    except PeerError as error:
        raise BadReply(f"the daemon broke the protocol: {error}") from None


class Conversation:
    """Encodes requests, and decodes the bytes received into replies."""

    def __init__(self) -> None:
        self._reader = FrameReader(MAX_REPLY)
        self._last = 0
        self._waiting: set[int] = set()  # requests without an answer
        self._descriptors: list[int] = []

    def request(self, op: str, fields: Mapping[str, Any]) -> tuple[int, bytes]:
        """A new request: its id, and the frame to send; RequestRejected if the fields can't be encoded."""
        number, payload = self.payload(op, fields)
        return number, frame(payload)

    def payload(self, op: str, fields: Mapping[str, Any]) -> tuple[int, bytes]:
        """As `request`, without the frame's header: adding it would copy the payload."""
        number = self._last + 1
        try:
            data = pack({"v": VERSION, "id": number, "op": op, **fields})
        except UnicodeEncodeError as error:
            raise RequestRejected(f"{op} can't be sent: {quoted(error.object[:100])} isn't text: it has bytes that"
                                  " aren't UTF-8, or half of a surrogate pair") from None
        except (ValueError, TypeError, OverflowError) as error:
            raise RequestRejected(f"{op} can't be sent: {error}") from None
        self._last = number
        self._waiting.add(number)
        return number, data

    def by_slot(self, number: int, slot: int, length: int) -> bytes:
        """The frame to send for request *number* when its payload is in a slot of the arena."""
        return encode({"v": VERSION, "id": number, "op": "slot", "slot": slot, "length": length})

    def received(self, data: bytes, descriptors: Sequence[int] = ()) -> list[tuple[Reply, list[int]]]:
        """
        The replies that are complete now, each with its descriptors, which the caller owns. BadReply if the daemon
        broke the protocol (close the connection then), Refused if it refused the whole connection.
        """
        if self._reader.idle and not (descriptors or self._descriptors):
            usual = parse_by_template(data)
            if usual is not None and usual.id in self._waiting:
                self._waiting.remove(usual.id)
                return [(usual, [])]
        self._descriptors += descriptors
        answers: list[tuple[Reply, list[int]]] = []
        try:
            for payload in self._reader.feed(data):
                reply = parse_reply(decode(payload))
                if reply.id == 0:
                    if reply.ok is None:
                        error = refusal(reply)
                        # The refusal is of the last frame or of the whole connection; other requests may have begun.
                        error.may_have_run |= len(self._waiting) > 1
                        raise error
                    raise PeerError("an answer without a request")
                if reply.id not in self._waiting:
                    raise PeerError(f"an answer to request {reply.id}, which isn't waiting")
                if len(self._descriptors) < reply.descriptors:
                    raise PeerError("a memory file that was announced didn't come")
                self._waiting.remove(reply.id)
                answers.append((reply, self._descriptors[:reply.descriptors]))
                del self._descriptors[:reply.descriptors]
            if len(self._descriptors) > MAX_DESCRIPTORS:
                raise PeerError("more descriptors than were announced")
        except (PeerError, Refused) as wrong:
            for _, owned in answers:
                self._descriptors += owned
            self.close()
            if isinstance(wrong, Refused):
                raise
            raise BadReply(f"the daemon broke the protocol: {wrong}") from None
        return answers

    def close(self) -> None:
        """Close the descriptors that no caller has taken."""
        while self._descriptors:
            os.close(self._descriptors.pop())
