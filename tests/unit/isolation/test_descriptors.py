"""What a job is born with."""

from __future__ import annotations

import os

from leeward._native.steps import Call, Cell, Table
from leeward.isolation import descriptors


def test_descriptors_are_put_in_order():
    """In a child: those that are wanted, under the numbers that are wanted, and no others."""
    out, told = os.pipe()
    ends = Cell("high"), Cell("error"), Cell("pipe")
    pid = os.fork()
    if 0 == pid:
        try:
            table = Table(descriptors.steps((None, *ends), 2))
            for cell, fd in zip(ends, (os.dup2(told, 40), 2, told), strict=True):
                table.address(cell)[0] = fd
            table.run()
            seen = []
            for number in range(150):
                try:
                    seen.append((number, os.get_inheritable(number)))
                except OSError:
                    continue
            os.write(1, repr(seen).encode())
        finally:
            os._exit(0)
    os.close(told)
    os.waitpid(pid, 0)
    with open(out, "rb") as said:
        assert b"[(0, True), (1, True), (2, False), (3, False)]" == said.read()


def test_what_is_left_open_is_between_two_closed_ranges():
    closed = [step.arguments for step in descriptors.steps((None,), 1, (72, 73)) if step.call is Call.CLOSE_RANGE]
    assert [(1, 71, 0), (74, 0xFFFF_FFFF, 0)] == closed


def test_ends_may_have_each_others_numbers():
    """2 and 3 change places: nothing is lost on the way."""
    out, told = os.pipe()
    pid = os.fork()
    if 0 == pid:
        try:
            os.dup2(os.open("/dev/zero", os.O_RDONLY), 2)
            os.dup2(told, 3)
            cells = [Cell(name) for name in "abcd"]
            table = Table(descriptors.steps(cells, 3))
            for cell, fd in zip(cells, (0, 1, 3, 2), strict=True):
                table.address(cell)[0] = fd
            table.run()
            os.write(2, os.read(3, 1) + os.readlink("/proc/self/fd/3").encode())
        finally:
            os._exit(0)
    os.close(told)
    os.waitpid(pid, 0)
    with open(out, "rb") as said:
        assert b"\0/dev/zero" == said.read()
