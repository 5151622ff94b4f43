"""
A pipe whose connection is in TLS, which ends in this process.

Bound:     bytes of the peer's that aren't decrypted yet: ROOM, and one record within OpenSSL.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from leeward.egress.faults import of_connection
from leeward.egress.pipes import ROOM, Pipe
from leeward.egress.tenancy import refusal

#: Bytes that are encrypted in one go: those of a record.
_RECORD = 16384


class TlsPipe(Pipe):
    """
    A pipe over *inner*, which it owns, in TLS: `receive` and `send` have the bytes in the clear.

    *name* is that of a host that is verified; None if the peer is a sandbox.
    """

    def __init__(self, inner: Pipe, context: ssl.SSLContext, name: str | None = None) -> None:
        self._inner = inner
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._goes, server_side=name is None, server_hostname=name)
        self._sending = asyncio.Lock()
        self._back = b""
        self.read = self.written = 0

    async def shake_hands(self, seconds: float) -> None:
        """Make the handshake, within *seconds*; NotAllowed if it or the certificate fails, OSError if the peer has gone."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        self._tls.do_handshake()
                        return
                    except ssl.SSLWantReadError:
                        await self._flush()
                        await self._more()
                    finally:
                        await self._flush()
        except ssl.SSLError as error:
            raise refusal(of_connection(error), failed=True, status=502) from None
        except TimeoutError:
            raise refusal(f"TLS: no handshake within {seconds:g} s", failed=True, status=504) from None

    async def _more(self) -> None:
        data = await self._inner.receive(ROOM)
        if data:
            self._came.write(data)
        else:
            self._came.write_eof()

    async def _flush(self) -> None:
        if self._goes.pending:
            async with self._sending:
                await self._inner.send(self._goes.read())

    async def receive(self, most: int = ROOM) -> bytes:
        if self._back:
            data, self._back = self._back[:most], self._back[most:]
            return data
        while True:
            try:
                data = self._tls.read(most)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._more()
                continue
            except ssl.SSLZeroReturnError:
                return b""
            self.read += len(data)
            return data

    async def send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        async with self._sending:
            for at in range(0, len(view), _RECORD):
                self._tls.write(view[at:at + _RECORD])
                await self._inner.send(self._goes.read())
        self.written += len(view)

    @property
    def is_quiet(self) -> bool:
        return not (self._back or self._came.pending or self._tls.pending()) and self._inner.is_quiet

    def finish(self) -> None:
        self._part()
        self._inner.finish()

    def reset_at_end(self) -> None:
        self._inner.reset_at_end()

    def close(self, *, reset: bool = False) -> None:
        if not reset:
            self._part()
        self._inner.close(reset=reset)

    def _part(self) -> None:
        """Send TLS's closing message, if the socket has room for it."""
        with suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        self._inner.push(self._goes.read())

    async def into(self, other: Pipe, most: int, what: str) -> None:
        while data := await self.receive():
            if self.read > most:
                raise refusal(f"{what} too large: more than {most} bytes")
            await other.send(data)
        other.finish()
