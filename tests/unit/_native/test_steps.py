"""Tables of system calls: what is laid out, what is passed, and what stops them."""

from __future__ import annotations

import errno
import os
import socket
import struct

import pytest

from leeward._native.steps import Block, Call, Cell, Step, Table, fails, gives, returns
from leeward.errors import KernelRefusal
from leeward.isolation.channel import Channel, send_step
from leeward.wire import control

AT_FDCWD = -100


def opened(path: str, cell: Cell) -> Step:
    return gives(cell, Call.OPENAT, AT_FDCWD, path, os.O_RDONLY | os.O_CLOEXEC, 0)


def test_a_result_goes_on_to_later_calls():
    """By its cell, loose or in a block, and not by its number."""
    fd = Cell("fd")
    table = Table([opened("/dev/null", fd), returns(Call.CLOSE, fd), fails(Call.CLOSE, fd, errnos=(errno.EBADF,))])

    table.run()

    assert table.value(fd) > 2


def test_a_block_holds_cells_and_addresses():
    """sendmsg takes a struct with addresses of others, and one of those has a descriptor in it."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = Cell("fd")
    with here, there:
        Table([opened("/dev/null", fd), send_step(here.fileno(), control.Locked(), [fd]),
               returns(Call.CLOSE, fd)]).run()
        received = Channel(there).receive()

    assert received is not None
    message, fds = received
    assert control.Locked() == message
    assert ["/dev/null"] == [os.readlink(f"/proc/self/fd/{one}") for one in fds]
    for one in fds:
        os.close(one)


def test_the_first_wrong_answer_stops_it(tmp_path):
    """A refusal, and just as well a success where a refusal was due; nothing after it is done."""
    folder = str(tmp_path / "made")
    after = returns(Call.MKDIRAT, AT_FDCWD, folder, 0o700)
    for wrong, text in (
        (returns(Call.CHDIR, "/missing"), r"chdir\('/missing'\): ENOENT"),
        (fails(Call.GETUID, errnos=(errno.EACCES,)), r"getuid\(\): .*it returned \d+"),
        (fails(Call.CHDIR, "/missing", errnos=(errno.EACCES, errno.EROFS)), "ENOENT"),
        (returns(Call.GETPID, value=-1), r"it returned \d+"),
    ):
        table = Table([returns(Call.CHDIR, "."), wrong, after])
        assert 1 == table.take()[0]
        with pytest.raises(KernelRefusal, match=text):
            table.run()
    assert not os.path.exists(folder)


def test_an_optional_step_may_be_refused(tmp_path):
    """Then later steps that are given its result are refused as well, and have to be optional themselves."""
    fd, missing = Cell("fd"), str(tmp_path / "missing")
    ask = [gives(fd, Call.OPENAT, AT_FDCWD, missing, os.O_RDONLY | os.O_CLOEXEC, 0, optional=True)]

    table = Table([*ask, returns(Call.CLOSE, fd, unless=(errno.EBADF,))])
    table.run()
    assert -errno.ENOENT == table.value(fd)
    assert 1 == Table([*ask, returns(Call.CLOSE, fd)]).take()[0]
    assert 0 == Table([opened(missing, fd)]).take()[0]  # control: where it isn't
    for unless in ((errno.ENOENT,), (errno.EINVAL, errno.ENOENT)):
        Table([returns(Call.CHDIR, missing, unless=unless)]).run()
    assert 0 == Table([returns(Call.CHDIR, missing, unless=(errno.EINVAL, errno.EACCES))]).take()[0]


def test_a_part_is_taken_alone(tmp_path):
    names = [str(tmp_path / name) for name in "abc"]
    table = Table([returns(Call.MKDIRAT, AT_FDCWD, name, 0o700) for name in names])

    table.run(1, 2)
    assert ["b"] == os.listdir(tmp_path)
    with pytest.raises(KernelRefusal, match=r"b'.*EEXIST"):
        table.run()
    assert (3, 0) == table.take(2)


def test_either_of_two_errnos_will_do():
    for errnos in ((errno.ENOENT, errno.EACCES), (errno.EACCES, errno.ENOENT)):
        Table([fails(Call.CHDIR, "/missing", errnos=errnos)]).run()


def test_a_hint_explains_an_errno():
    step = Step(Call.CHDIR, ("/missing",), hints={errno.ENOENT: "nobody has been here"})
    with pytest.raises(KernelRefusal, match="ENOENT: nobody has been here"):
        Table([step]).run()


def test_a_cell_lies_in_one_block():
    cell = Cell("fd")
    blocks = [Block(bytes(8), cells={0: cell}) for _ in range(2)]
    with pytest.raises(ValueError, match="cell fd can't lie in a second place"):
        Table([returns(Call.PRCTL, block) for block in blocks])


def test_a_negative_argument_is_passed_as_it_is():
    """AT_FDCWD in 64 bits, and a struct next to it."""
    limit = Block(struct.pack("QQ", 0, 0))
    with pytest.raises(KernelRefusal, match=r"prlimit64.*EINVAL"):
        Table([returns(Call.PRLIMIT64, 0, -1, limit, 0)]).run()
