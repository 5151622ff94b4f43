"""
TLS that the broker ends: which, with what certificate, and with which secrets in its requests.

Runs in:   the broker, on its loop.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import cached_property

from leeward.egress.certificates import Certificates, towards_hosts
from leeward.egress.heads import Head
from leeward.egress.injection import Injection, Known
from leeward.egress.pipes import Pipe
from leeward.egress.tls import TlsPipe
from leeward.egress.values import Values, unavailable
from leeward.spec.egress import Policy
from leeward.spec.egress_tls import is_for
from leeward.wire.egress_control import Leased, Sealed


class PoolSealing:
    """
    The seal that the sandboxes of a pool share.

    Args:
        message: what the daemon says of it.
        fds: where the values of its secrets can be read; owned from now on.
    """

    def __init__(self, message: Sealed, fds: Sequence[int]) -> None:
        self._message = message
        self.secrets = tuple(message.secrets)
        self.values = Values(message.secrets, fds)

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """
        What verifies hosts.
        """
        return towards_hosts(self._message.bundle, self._message.trusted)

    def close(self) -> None:
        """
        No sandbox uses it any more.
        """
        self.values.close()


class Sealing:
    """
    A sandbox's.

    Args:
        pool: its pool's.
        message: what the daemon says of its lease.
    """

    def __init__(self, pool: PoolSealing, message: Leased) -> None:
        self._pool, self._values = pool, pool.values
        self._certificates = Certificates(message.signer, message.certificate)
        self._placeholders = {name: text.encode()
                              for name, text in zip(pool.secrets, message.placeholders, strict=True)}

    @property
    def trust(self) -> ssl.SSLContext:
        """
        What verifies hosts.
        """
        return self._pool.trust

    async def inner(self, client: Pipe, name: str, seconds: float) -> Pipe:
        """
        What a sandbox says to *name*; *client* is the caller's no more, if this doesn't fail.

        Raises:
            NotAllowed: no handshake.
            OSError: the sandbox has gone.
        """
        pipe = TlsPipe(client, self._certificates.towards_sandboxes(name))
        await pipe.shake_hands(seconds)
        return pipe

    async def outer(self, server: Pipe, name: str, seconds: float) -> Pipe:
        """
        A connection in TLS with *name*, which is verified.

        Raises:
            NotAllowed: it is somebody else, or there is no handshake. *server* is closed.
            OSError: the host has gone; the same.
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
        What a request gets; None where no secret is for its host.

        Raises:
            NotAllowed: a secret that it needs can't be had.
            HeadError: it asks for what couldn't be searched.
        """
        secrets = [each for each in policy.secrets if is_for(each, head.host.name)]
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
        return Injection(head, known)


def _has(head: Head, placeholder: bytes) -> bool:
    """
    Whether the request may contain the secret's placeholder, also in credentials in base64.
    """
    return (placeholder in head.target.encode()
            or any(placeholder in value or b"authorization" == name for name, value in head.fields))
