"""The way to a daemon by WebSocket over TLS: `leeward serve leeward` on its machine."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from leeward.client.connecting import away
from leeward.errors import Busy, DaemonAway, RequestRejected, SandboxOver
from leeward.spec.paths import RemoteHost

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

#: Bytes of one message; seconds until it is open, and of silence until it is asked for a sign of life, and for that.
MOST_MESSAGE, OPEN_S, PATIENCE_S = 4 << 20, 15.0, 20.0

#: What the statuses of the answers mean, to whom it may concern.
_STATUSES = {401: "it wants another token: token=, or LEEWARD_TOKEN", 403: "it doesn't let this client in",
             404: "it serves no `leeward serve leeward`", 421: "it doesn't have this name: `leeward serve --name`",
             429: "the token has as many connections as it may"}


async def way(host: RemoteHost, path: str) -> WebSocketWay:
    """The stream at *path* of a host. DaemonAway if there is none."""
    return WebSocketWay(host, await _opened(host, path))


async def _opened(host: RemoteHost, path: str) -> ClientConnection:
    try:
        from websockets.exceptions import InvalidStatus, WebSocketException  # of the extra `remote`

        from leeward.client.websocket_opening import Opening  # which needs it
    except ImportError:
        raise away(host, "this needs websockets: pip install 'leeward[remote]'") from None

    url = f"ws{host.rstrip('/').removeprefix('http')}{path}"
    heads = {"Authorization": f"Bearer {host.token}"} if host.token else {}
    try:
        return await Opening(
            url, additional_headers=heads, compression=None, max_size=MOST_MESSAGE, max_queue=4, open_timeout=OPEN_S,
            ping_interval=PATIENCE_S, ping_timeout=PATIENCE_S, user_agent_header="leeward",
            ssl=ssl.create_default_context() if url.startswith("wss:") else None)
    except InvalidStatus as error:
        status = error.response.status_code
        raise _Unopened(host, status) from None
    except ssl.SSLCertVerificationError as error:
        raise away(host, f"its certificate isn't trusted: {error.verify_message}") from None
    except TimeoutError:
        raise away(host, "it answers nothing") from None
    except WebSocketException as error:
        why = "the proxy of this program's opens no way" if "Proxy" in type(error).__name__ else "it speaks no WebSocket"
        raise away(host, why) from None
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or type(error).__name__
        raise away(host, str(why).lower()) from None


class _Unopened(DaemonAway):
    """A host that opens no WebSocket, and the status by which it says so."""

    def __init__(self, host: RemoteHost, status: int) -> None:
        self.status, self.why = status, _STATUSES.get(status, f"it answers with status {status}")
        super().__init__(str(away(host, self.why)))
        self.may_have_run = False


class WebSocketWay:
    """As remote.RemoteWay."""

    def __init__(self, host: RemoteHost, made: ClientConnection) -> None:
        self._host, self._made = host, made

    async def send(self, data: bytes) -> None:
        from websockets.exceptions import ConnectionClosed  # of the extra

        try:
            for at in range(0, len(data), MOST_MESSAGE):
                await self._made.send(data[at:at + MOST_MESSAGE])
        except ConnectionClosed:
            raise ConnectionResetError from None

    async def receive(self) -> bytes:
        from websockets.exceptions import ConnectionClosed  # of the extra

        while True:
            try:
                data = await self._made.recv()
            except ConnectionClosed:
                return b""
            if isinstance(data, bytes) and data:
                return data

    async def end(self) -> bool:
        return False  # a WebSocket closes both directions

    async def close(self) -> None:
        await self._made.close()

    async def port(self, sandbox: str, port: int) -> WebSocketWay | None:
        try:
            return await way(self._host, f"/leeward/{sandbox}/{port}")
        except _Unopened as error:
            if error.status == 502:
                return None
            if error.status == 404:
                raise SandboxOver("there is no such sandbox", may_have_run=False) from None
            if error.status in (429, 503):
                raise Busy(f"the port isn't reached now: {error.why}") from None
            raise RequestRejected(f"the port isn't reached: {error.why}") from None
