"""What comes by a channel whose other end is gone."""

from __future__ import annotations

import os
import resource

from kit.unclosed import close_garbage
from leeward.isolation.channel import Channel
from leeward.wire import control


def test_the_last_message_of_a_peer_that_did_not_read_arrives() -> None:
    """
    A socket that is closed with unread bytes in it leaves ECONNRESET, which is reported before the bytes that it had
    sent.
    """
    here, there = Channel.pair()
    here.send(control.Mapped())
    there.send(control.Failed(-1, "", "why"))
    there.close()

    assert (control.Failed(-1, "", "why"), []) == here.receive()
    assert here.receive() is None
    here.close()


def test_without_last_words_there_is_an_end() -> None:
    here, there = Channel.pair()
    here.send(control.Mapped())
    there.close()

    assert here.receive() is None
    assert here.receive() is None
    here.close()


def test_descriptors_that_find_no_room_are_lost_and_the_message_is_not() -> None:
    """The kernel hands over what fits and cuts the rest off: none is left open, and the message says whose they were."""
    here, there = Channel.pair()
    sent = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(5)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there.send(control.Made(7, 4711), sent)
    for fd in sent[1:]:
        os.close(fd)  # room for four of five, if all numbers below are taken
    filler = []
    while (fd := os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)) < sent[-1]:
        filler.append(fd)
    filler.append(fd)
    close_garbage()
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 3, hard))
    try:
        got = here.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (control.Made(7, 4711), []) == got
    assert before == len(os.listdir("/proc/self/fd"))
    there.send(control.Made(8, 4711), [sent[0]])
    again = here.receive()
    assert again is not None  # control: it serves on
    for fd in (*filler, sent[0], *again[1]):
        os.close(fd)
    here.close()
    there.close()
