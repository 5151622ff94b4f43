"""
Many files in one binary value, one after the other: what `file_write_many` and `file_read_many` carry.

Runs in:   clients, and the process in a sandbox that does file calls; pure. The daemon hands the bytes on unread.
Trust:     none: any bytes give files, or ValueError.

A file to write is HEAD, its path, its content; a file that was read is FOUND and its content, or why there is none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NoReturn

#: Bytes of the path; permission bits, or -1 to keep them; bytes of the content.
HEAD = struct.Struct(">HhI")
#: The errno, 0 if the file was read; and bytes of its content, or of why it couldn't be.
FOUND = struct.Struct(">HI")


def file_of(path: bytes, mode: int, content: bytes) -> tuple[bytes, bytes, bytes]:
    """In pieces."""
    return HEAD.pack(len(path), mode, len(content)), path, content


def files_in(data: bytes) -> Iterator[tuple[bytes, int, memoryview]]:
    """Path, mode and content of each file; whoever stops early has had whole ones."""
    view, at, end = memoryview(data), 0, len(data)
    while at < end:
        begin = at + HEAD.size
        length, mode, size = HEAD.unpack_from(data, at) if begin <= end else _cut()
        at = begin + length + size
        if at > end:
            _cut()
        yield data[begin:begin + length], mode, view[begin + length:at]


def found_of(errno: int, content: bytes) -> bytes:
    return FOUND.pack(errno, len(content)) + content


def found_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Of each file that was asked for: the errno and the content, or why there is none."""
    at, end = 0, len(data)
    while at < end:
        begin = at + FOUND.size
        errno, size = FOUND.unpack_from(data, at) if begin <= end else _cut()
        at = begin + size
        if at > end:
            _cut()
        yield errno, data[begin:at]


def _cut() -> NoReturn:
    raise ValueError("a batch of files is cut short")
