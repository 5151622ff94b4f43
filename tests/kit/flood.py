"""A client that sends far more jobs than a daemon can run."""

from __future__ import annotations

import socket
import threading
from collections import Counter

from kit.live_daemon import PATIENCE
from leeward.wire.frames import FrameReader, decode
from leeward.wire.requests import Execute, encode_request


class Flood:
    """
    A client in a thread that sends another job for each answer.

    Args:
        sock: the client's connection, which this object closes.
        ahead: the number of unanswered requests that it keeps on its way.

    Attributes:
        answers: the number of answers by their kind: "finished", or the kind of the refusal.
    """

    def __init__(self, sock: socket.socket, ahead: int) -> None:
        self.answers: Counter[str] = Counter()
        self._sock, self._ahead = sock, ahead
        sock.setblocking(True)
        self._over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join(PATIENCE)
        self._sock.close()

    def _run(self) -> None:
        reader, number = FrameReader(), 0
        sent: set[int] = set()
        while not self._over or sent:
            while len(sent) < self._ahead and not self._over:
                number += 1
                sent.add(number)
                self._sock.sendall(encode_request(Execute(number, code=b"pass")))
            for payload in reader.feed(self._sock.recv(1 << 16)):
                answer = decode(payload)
                sent.remove(answer["id"])  # each is answered once
                kind = answer["error"]["kind"] if "error" in answer else answer["ok"]["outcome"]
                self.answers[kind] += 1
