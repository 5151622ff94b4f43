"""Shows a job's output while it runs (leeward/client/live_output.py), and the rest at the end."""

from __future__ import annotations

from leeward_cli.messages import EscapedStream


class ShownOutput:
    """Shows the output of one job, and knows how much was shown; *raw*: control characters go to a terminal as they are."""

    def __init__(self, raw: bool) -> None:
        self._streams = EscapedStream(1, raw), EscapedStream(2, raw)
        self.sizes = [0, 0]

    def add(self, out: bytes, err: bytes) -> None:
        for number, data in enumerate((out, err)):
            if data:
                self.sizes[number] += len(data)
                self._streams[number].write(data)

    def finish(self, out: bytes | memoryview, err: bytes | memoryview) -> None:
        for number, data in enumerate((out, err)):
            rest = memoryview(data)[self.sizes[number]:]
            if rest:
                self._streams[number].write(bytes(rest) if self.sizes[number] else rest)
            self._streams[number].close()
