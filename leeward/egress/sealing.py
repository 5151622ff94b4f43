"""
Connections whose TLS ends in the broker: the handshakes with sandboxes and hosts, and the secrets in requests.

Runs in:   the broker, on its loop.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import cached_property

from leeward.egress.certificates import Certificates, towards_hosts
from leeward.egress.heads import Head
from leeward.egress.injection import Injection, Known, Searched
from leeward.egress.pipes import Pipe
from leeward.egress.tls import TlsPipe
from leeward.egress.values import Values, unavailable
from leeward.spec.egress import Policy
from leeward.spec.egress_tls import is_for
from leeward.wire.egress_control import Leased, Sealed


class PoolSealing:
    """
    What the sandboxes of a pool share: the values of its secrets, and the TLS context that verifies hosts.

    Args:
        message: the daemon's, about the pool.
        fds: where the values of its secrets can be read; owned from now on.
    """

    def __init__(self, message: Sealed, fds: Sequence[int]) -> None:
        self._message = message
        self.secrets = tuple(message.secrets)
        self.values = Values(message.secrets, fds)
        self._searched: dict[tuple[bytes, ...], Searched] = {}

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """The TLS context that verifies hosts."""
        return towards_hosts(self._message.bundle, self._message.trusted)

    def searched(self, values: tuple[bytes, ...]) -> Searched:
        """Return what is looked for in responses of a host that has *values*. A pool has few such groups of values."""
        found = self._searched.get(values)
        if found is None:
            found = self._searched[values] = Searched(values)
        return found

    def close(self) -> None:
        """Forget the values: no sandbox of the pool is left."""
        self.values.close()
        self._searched.clear()


class Sealing:
    """
    Ends the TLS of one sandbox's connections, and finds the secrets for its requests.

    Args:
        pool: what the sandboxes of its pool share.
        message: the daemon's, about the sandbox's lease.
    """

    def __init__(self, pool: PoolSealing, message: Leased) -> None:
        self._pool, self._values = pool, pool.values
        self._certificates = Certificates(message.signer, message.certificate)
        self._placeholders = {name: text.encode()
                              for name, text in zip(pool.secrets, message.placeholders, strict=True)}

    @property
    def trust(self) -> ssl.SSLContext:
        """The TLS context that verifies hosts."""
        return self._pool.trust

    async def inner(self, client: Pipe, name: str, seconds: float) -> Pipe:
        """
        Make the handshake with a sandbox in place of the host *name*. Returns the pipe with the bytes in the clear,
        which owns *client* then. If this fails, *client* stays the caller's.

        Raises:
            NotAllowed: the handshake failed.
            OSError: the sandbox has gone.
        """
        pipe = TlsPipe(client, self._certificates.towards_sandboxes(name))
        await pipe.shake_hands(seconds)
        return pipe

    async def outer(self, server: Pipe, name: str, seconds: float) -> Pipe:
        """
        Make the handshake with the host *name* over *server*, and verify the host. Returns the pipe with the bytes in
        the clear, which owns *server* then. If this fails, *server* is closed.

        Raises:
            NotAllowed: the host has no valid certificate for *name*, or the handshake failed.
            OSError: the host has gone.
        """
        pipe = TlsPipe(server, self.trust, name)
        try:
            await pipe.shake_hands(seconds)
        except BaseException:
            server.close()
            raise
        return pipe

    async def injection(self, policy: Policy, head: Head, seconds: float) -> Injection | None:
        """
        Return the injection of secrets into the request of *head*; None if no secret is for its host and port.

        Args:
            seconds: to wait for the value of each secret.

        Raises:
            NotAllowed: there is no value for a secret that the request needs.
            HeadError: the request asks for another protocol, whose bytes couldn't be searched.
        """
        secrets = [each for each in policy.secrets if is_for(each, head.host.name, head.port)]
        if not secrets:
            return None
        known = []
        for each in secrets:
            value = await self._values.get(each.name, seconds)
            placeholder = self._placeholders.get(each.name, b"")
            if isinstance(value, bytes):
                known.append(Known(placeholder, value, each.places))
            elif "body" in each.places or _has(head, placeholder):
                raise unavailable(each.name, value)
        return Injection(head, known, self._pool.searched(tuple(each.value for each in known)))


def _has(head: Head, placeholder: bytes) -> bool:
    """Whether the request may contain the secret's placeholder, also in credentials in base64."""
    return (placeholder in head.target.encode()
            or any(placeholder in value or name == b"authorization" for name, value in head.fields))
