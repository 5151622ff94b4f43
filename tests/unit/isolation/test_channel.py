"""
What comes by a channel whose other end is gone.
"""

from __future__ import annotations

from leeward.isolation.channel import Channel
from leeward.wire import control


def test_the_last_words_of_who_did_not_listen_arrive() -> None:
    """
    Who closes a socket with something unread in it leaves ECONNRESET, which is told before what he had sent.
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
