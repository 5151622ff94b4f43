"""
Frames: a 4-byte big-endian length, then one MessagePack map.

Runs in:   anywhere; pure. No socket, no clock, and little to import: the CLI's fast
           path and processes that jobs can read load this module.
Trust:     none. The daemon and the clients don't trust each other's bytes. Whatever goes in, a map or PeerError comes
           out, and memory stays in proportion to the bytes that have arrived, never to a length that they claim.
Source:    the MessagePack specification, github.com/msgpack/msgpack
"""

from __future__ import annotations

from msgpack import Packer, unpackb

from leeward.errors import PeerError

# Not typing's own: `leeward exec` in Python imports no typing. Its imports take 16 ms of processor time beside the
# interpreter's own 13 so, and 22 with typing (medians of twelve rounds in turn, 2026-11-24). All else that starts often
# has typing anyhow, from a library or another module, so only the modules that `exec` imports do without;
# tests/unit/cli/test_imports.py holds the list.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol, overload

    from leeward.wire.long_frames import LongFrame

    class Bytes(Protocol):
        """Bytes that can be read without a copy of the whole. An index past the end raises IndexError."""

        def __len__(self) -> int: ...
        @overload
        def __getitem__(self, at: int, /) -> int: ...
        @overload
        def __getitem__(self, at: slice, /) -> bytes | memoryview: ...

#: Version of everything that docs/wire.md says; both sides send it or check it.
VERSION = 1

#: Bytes of the length in front of each frame.
HEADER = 4

#: Bytes that follow the first byte of a number in MessagePack, and of a binary's length, by that byte.
UNSIGNED, BINARY = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}, {0xC4: 1, 0xC5: 2, 0xC6: 4}

#: Bytes of one request. Its standard input and its files, at most 64 MiB each, share the frame.
MAX_REQUEST = 80 << 20

#: Bytes of one reply. Larger results go by descriptor.
MAX_REPLY = 16 << 20

#: Levels of maps and arrays inside each other. The deepest message of the protocol has 4.
MAX_DEPTH = 32

#: Entries of one map or array.
MAX_ENTRIES = 4096

#: Values in one frame, including keys. An empty array is 1 byte on the wire and 56 in memory, so a bound on bytes isn't
#: enough.
MAX_VALUES = 32768

#: Bytes of a request's text together. 16 MiB of it take up to 0.17 s to decode, and bytes take none.
MAX_TEXT = 4 << 20

#: Bytes from which a payload is received into a store, if the reader has stores.
LONG = 1 << 20

#: Bytes from which `decode_in_place` doesn't copy a binary value; the number of such values in a payload, of which the
#: protocol's largest request has 1,026; and bytes of a payload beside them. Both take time to decode.
LARGE_VALUE, MAX_LARGE, MAX_REST = 1 << 10, 2048, 8 << 20

_TOO_MUCH_REST = f"more than {MAX_REST} bytes in values that are no binary of {LARGE_VALUE} bytes"

#: Bytes of a map's key: file names and environment variables are keys.
MAX_KEY = 4096


def frame(payload: bytes | memoryview) -> bytes:
    """*payload* with its length in front."""
    return len(payload).to_bytes(HEADER, "big") + payload


def encode(message: Mapping[str, Any], limit: int = MAX_REQUEST) -> bytes:
    """
    *message* as a whole frame. ValueError if it is larger than *limit*, or text in it isn't valid Unicode; TypeError or
    OverflowError if it holds a value that MessagePack can't encode.
    """
    return frame(pack(message, limit))


def pack(message: Mapping[str, Any], limit: int = MAX_REQUEST) -> bytes:
    """*message* as a frame's payload. Raises as `encode`."""
    # A new Packer each time: one that is kept would keep the memory of its largest message.
    payload: bytes = Packer().pack(message)
    if len(payload) > limit:
        raise ValueError(f"a message of {len(payload)} bytes is above the {limit} that a frame may have")
    return payload


class FrameReader:
    """
    Cuts a stream of bytes into payloads of at most *limit* bytes. *store* makes the store of one of LONG bytes or more,
    which is then returned as a view of it; without one every payload is copied out of the reader's buffer.
    """

    __slots__ = ("_buffer", "_error", "_limit", "_long", "_make", "_need")

    def __init__(self, limit: int = MAX_REQUEST, store: Callable[[int], LongFrame] | None = None) -> None:
        self._limit, self._make = limit, store
        self._buffer = bytearray()
        self._need = HEADER  # bytes until something can be done with the buffer
        self._error: PeerError | None = None
        self._long: LongFrame | None = None  # has all that there is of the frame, and the buffer is empty

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame that are kept here, including its length field."""
        return len(self._buffer) if self._long is None else HEADER + self._long.held

    @property
    def lacks(self) -> int:
        """Bytes that are missing until something can be done with those that are kept here, at least 1."""
        return max(1, self._need - len(self._buffer)) if self._long is None else self._long.lacks

    @property
    def idle(self) -> bool:
        """Whether the stream is between two frames."""
        return not self._buffer and self._error is None and self._long is None

    def drop(self) -> None:
        """Forget the bytes of the unfinished frame."""
        self._need, self._long = HEADER, None
        self._buffer.clear()

    def feed(self, data: bytes | memoryview) -> list[bytes | memoryview]:
        """
        Take *data*; return the payloads that are complete now. PeerError for a length above the limit, now or in an
        earlier call: no later frame can be found in the stream then, so close it. OSError if there is no memory for a
        store.
        """
        if self._error is not None:
            raise self._error
        payloads: list[bytes | memoryview] = []
        if self._long is not None:
            data = memoryview(data)
            data = data[self._long.fill(data):]
            if self._long.lacks:
                return payloads
            payloads.append(self._long.payload())
            self._long = None
        buffer = self._buffer
        buffer += data
        if len(buffer) < self._need:
            return payloads
        start, end = 0, len(buffer)
        while True:
            self._need = HEADER
            if end - start < HEADER:
                break
            length = int.from_bytes(buffer[start:start + HEADER], "big")
            if length > self._limit:
                self._error = PeerError(f"a frame of {length} bytes; at most {self._limit} are taken")
                buffer.clear()
                raise self._error
            if end - start < HEADER + length:
                if self._make is not None and length >= LONG:
                    self._long = self._make(length)
                    self._long.fill(memoryview(bytes(memoryview(buffer)[start + HEADER:])))
                    start = end
                else:
                    self._need = HEADER + length
                break
            start += HEADER
            payloads.append(bytes(memoryview(buffer)[start:start + length]))
            start += length
        del buffer[:start]
        return payloads


# The kinds of a value, by its first byte, for `survey`.
_ARRAY, _MAP, _SIZED, _REFUSED = -1, -2, -3, -4


def _first_bytes() -> tuple[list[int], list[int]]:
    """Two tables by first byte: the value's whole size, or one of the kinds above; and the bytes of its length field."""
    kinds, widths = [1] * 256, [0] * 256
    for byte in range(0x80, 0x90):
        kinds[byte], kinds[byte + 0x10] = _MAP, _ARRAY
    for byte in range(0xA0, 0xC0):
        kinds[byte] = 1 + (byte & 31)             # short text
    kinds[0xC1] = _REFUSED                        # never used
    for byte, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xD9, 1), (0xDA, 2), (0xDB, 4)):
        kinds[byte], widths[byte] = _SIZED, width  # binary, text
    for byte in (*range(0xC7, 0xCA), *range(0xD4, 0xD9)):
        kinds[byte] = _REFUSED                    # extension types, timestamps
    for byte, size in zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True):
        kinds[byte] = 1 + size                    # float32, float64, uint8 .. int64
    for byte, kind, width in ((0xDC, _ARRAY, 2), (0xDD, _ARRAY, 4), (0xDE, _MAP, 2), (0xDF, _MAP, 4)):
        kinds[byte], widths[byte] = kind, width
    return kinds, widths


_KINDS, _WIDTHS = _first_bytes()


#: What `_with_views` has in place of a value: an extension type of 4 bytes.
_STANDS_FOR = b"\xd6\0"


def survey(payload: bytes | memoryview, most_text: int = MAX_REQUEST, large: list[tuple[int, int, int]] | None = None,
           most_values: int = MAX_VALUES, most_entries: int = MAX_ENTRIES, tops: list[int] | None = None) -> None:
    """
    Walk over the values without building any, and refuse a payload beyond the limits above. *large* gets the places of
    at most MAX_LARGE binary values of LARGE_VALUE bytes and more: where each begins, where its content does, and its
    end. *tops* gets where each key and value of the outermost map begins.

    The decoder allocates an array by the length that the payload claims, in up to 1024 levels: 4 KiB of input could
    make it allocate hundreds of MiB before it notices that the input ends too early.
    """
    kinds, widths = _KINDS, _WIDTHS
    position, values, left, texts, rest = 0, 0, 1, 0, 0
    outer: list[int] = []  # values still to come in each container around this one
    while True:
        if tops is not None and len(outer) == 1:
            tops.append(position)
        byte = payload[position]
        kind = kinds[byte]
        left -= 1
        values += 1
        if kind > 0:
            position += kind
        elif kind == _SIZED:
            position += 1
            width = widths[byte]
            size = int.from_bytes(payload[position:position + width], "big")
            if byte > 0xC6:
                texts += size
            elif large is not None and size >= LARGE_VALUE:
                large.append((position - 1, position + width, position + width + size))
                if len(large) > MAX_LARGE:
                    raise PeerError(f"more than {MAX_LARGE} binary values of {LARGE_VALUE} bytes in a long frame")
            elif large is not None:
                rest += size
                if rest > MAX_REST:  # told at the end as well, but a walk over tens of thousands of values takes time
                    raise PeerError(_TOO_MUCH_REST)
            position += width + size
        elif kind == _REFUSED:
            raise PeerError(f"byte {byte:#04x} starts no value that is taken; extension types are refused")
        else:
            width = widths[byte]
            position += 1
            entries = int.from_bytes(payload[position:position + width], "big") if width else byte & 15
            position += width
            if entries > most_entries:
                raise PeerError(f"a map or array of {entries} entries; at most {most_entries} are taken")
            outer.append(left)
            if len(outer) > MAX_DEPTH:
                raise PeerError(f"maps and arrays nested deeper than {MAX_DEPTH}")
            left = entries * 2 if kind == _MAP else entries
        if values + left > most_values:
            raise PeerError(f"more than {most_values} values in a frame")
        while not left:
            if not outer:
                if position != len(payload):
                    raise PeerError(f"the map ends at {position} of {len(payload)} bytes")
                if texts > most_text:
                    raise PeerError(f"text of {texts} bytes; at most {most_text} are taken, and more as binary")
                return
            left = outer.pop()


def skip(payload: Bytes, position: int, most: int) -> int:
    """
    The end of the value that starts at *position*, which may lie past the end of *payload*. IndexError if no value
    starts there, it is cut short, or it consists of more than *most* values.
    """
    kinds, widths = _KINDS, _WIDTHS
    left = 1
    for _ in range(most):
        byte = payload[position]
        kind = kinds[byte]
        left -= 1
        if kind > 0:
            position += kind
        elif kind == _REFUSED:
            break
        else:
            width = widths[byte]
            position += 1
            count = int.from_bytes(payload[position:position + width], "big") if width else byte & 15
            position += width
            if kind == _SIZED:
                position += count
            else:
                left += count * 2 if kind == _MAP else count
        if not left:
            return position
    raise IndexError(position)


def _map(pairs: list[tuple[object, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if not isinstance(key, str) or len(key) > MAX_KEY:
            raise PeerError("a map's key must be text of a sensible length")
        result[key] = value
    if len(result) != len(pairs):
        raise PeerError("a map has the same key twice")
    return result


def unpack(payload: bytes, most_values: int, most_entries: int, errors: str = "strict",
           pairs: Callable[[list[tuple[object, object]]], dict[str, object]] = _map) -> Any:
    """
    The value in *payload*, of any type, within these bounds and MAX_DEPTH. Invalid text is treated as *errors* says,
    and *pairs* makes the maps. PeerError if there is none, whatever the bytes are.
    """
    try:
        survey(payload, most_values=most_values, most_entries=most_entries)
        return unpackb(payload, raw=False, strict_map_key=True, object_pairs_hook=pairs, unicode_errors=errors)
    except PeerError:
        raise
    except Exception as error:  # any error means that the bytes are wrong
        raise PeerError(f"not MessagePack: {type(error).__name__}") from None


def decode(payload: bytes | memoryview, most_text: int = MAX_REQUEST) -> dict[str, Any]:
    """
    A copy of the map in *payload*: keys are text and occur once; values are None, bool, int, float, str, bytes, list
    and dict. PeerError if it is anything else, beyond the limits above, or its texts of 32 bytes and more have over
    *most_text*.
    """
    return _decoded(payload, most_text, None)


def decode_in_place(payload: memoryview, most_text: int = MAX_REQUEST) -> dict[str, Any]:
    """
    As `decode`, but binary values of LARGE_VALUE bytes and more, MAX_LARGE at most, are views of *payload*, and what is
    beside them has MAX_REST bytes at most. They are copies where they are less than half of it, so that what keeps a
    value keeps no more than twice its bytes.
    """
    return _decoded(payload, most_text, [])


def _decoded(payload: bytes | memoryview, most_text: int, large: list[tuple[int, int, int]] | None) -> dict[str, Any]:
    if not payload or _KINDS[payload[0]] != _MAP:
        raise PeerError("a frame must hold a map")
    try:
        survey(payload, most_text, large)
        size = sum(end - start for _, start, end in large or ())
        if large is not None and len(payload) - size > MAX_REST:
            raise PeerError(_TOO_MUCH_REST)
        if large and 2 * size >= len(payload):
            result = _with_views(memoryview(payload).toreadonly(), large)
        else:
            result = unpackb(payload, raw=False, strict_map_key=True, object_pairs_hook=_map)
    except PeerError:
        raise
    except IndexError:
        raise PeerError("the map is cut short") from None
    except Exception as error:
        # A decoder may raise any exception for malformed bytes, so each of them means malformed bytes.
        raise PeerError(f"not MessagePack: {type(error).__name__}") from None
    return result


def _with_views(payload: memoryview, large: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Decode what is between the *large* values: an extension type stands for each, as `survey` has found none."""
    rest, at = bytearray(), 0
    for number, (begin, _, end) in enumerate(large):
        rest += payload[at:begin]
        rest += _STANDS_FOR + number.to_bytes(4, "big")
        at = end
    rest += payload[at:]

    def view(_kind: int, number: bytes) -> memoryview:
        _, start, end = large[int.from_bytes(number, "big")]
        return payload[start:end]

    decoded: dict[str, Any] = unpackb(rest, raw=False, strict_map_key=True, object_pairs_hook=_map, ext_hook=view)
    return decoded
