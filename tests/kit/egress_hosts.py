"""
Hosts on loopback for tests of egress: HTTP in the clear and in TLS, and the resolver that knows their names.

Runs in:   the tests, on their loop.

The certificate is for example.org and its sub-domains. Only clients that are given its authority trust it. Its key is
no secret, since no other host has the certificate.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

from leeward.spec.hosts import Address

#: Made by `openssl req -x509` and `openssl x509 -req`, good for a hundred years.
AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBqjCCAU+gAwIBAgIUOShvYmU2O76pg6y3CtQQS6fyLd0wCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWbGVld2FyZCB0ZXN0IGF1dGhvcml0eTAgFw0yNjExMjMxNjE3
NTlaGA8yMTI2MTAzMDE2MTc1OVowITEfMB0GA1UEAwwWbGVld2FyZCB0ZXN0IGF1
dGhvcml0eTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJf6x6XPsngB268R2Adv
huI9+SNcgw4rA1cPL+ny14Iu8XSqxOY9JlhVUaTiyLQrgXJBIEIWfmyzu1FBH+Oy
IPyjYzBhMB0GA1UdDgQWBBSOspOkUi8UI4H+rneXP8wClmXUYzAfBgNVHSMEGDAW
gBSOspOkUi8UI4H+rneXP8wClmXUYzAPBgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB
/wQEAwICBDAKBggqhkjOPQQDAgNJADBGAiEA6zc2cWmFqM/59pi2ueOqhLseh8IN
RRJZJgc/yloBCjUCIQCvc7+MYRlCY7ztQcy+1+wACrqvf54aXjCbNYPAIukjRw==
-----END CERTIFICATE-----
"""

#: The certificate of example.org and its sub-domains, with its key.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBxzCCAWygAwIBAgIUbB50p6C1IDmGCw2Oy7/q6PI6mfAwCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWbGVld2FyZCB0ZXN0IGF1dGhvcml0eTAgFw0yNjExMjMxNjE4
MDBaGA8yMTI2MTAzMDE2MTgwMFowFjEUMBIGA1UEAwwLZXhhbXBsZS5vcmcwWTAT
BgcqhkjOPQIBBggqhkjOPQMBBwNCAAQ01MzC/i+knBLYwUy7Q4EmvAgXfWJtkmek
VcYtOvw4OkWnkZ9h84PVfYUDNcVUCTX2vx4NVhLlzYJd70SBk7Eko4GKMIGHMCUG
A1UdEQQeMByCC2V4YW1wbGUub3Jngg0qLmV4YW1wbGUub3JnMAkGA1UdEwQCMAAw
EwYDVR0lBAwwCgYIKwYBBQUHAwEwHwYDVR0jBBgwFoAUjrKTpFIvFCOB/q53lz/M
ApZl1GMwHQYDVR0OBBYEFP/mmlxZ+wYN/ZDhFpf3qsAPCMLMMAoGCCqGSM49BAMC
A0kAMEYCIQChuWDSBayd7U5N4I3vtKxRIBe5TQWCepUuJJr3zFWY3QIhAMhHLYmB
G52gqtcWGHeJqVOGdE9SxyU/3o5kPEsrwZUd
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgyGU9EtLfriFb8jR3
UmcAvsNQuA4mDG2yEiH7s+hU2uGhRANCAAQ01MzC/i+knBLYwUy7Q4EmvAgXfWJt
kmekVcYtOvw4OkWnkZ9h84PVfYUDNcVUCTX2vx4NVhLlzYJd70SBk7Ek
-----END PRIVATE KEY-----
"""

Answer = Callable[[bytes, bytes], bytes]


class Host:
    """
    A server that keeps the requests that it gets.

    Attributes:
        port: its port on 127.0.0.1.
        heads: the heads of the requests, in order.
        bodies: the bodies of the requests, in order.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.port = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: read a request, answer it, and close."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line.partition(b":")[2] for line in head.lower().split(b"\r\n")
                      if line.startswith(b"content-length")]
            body = await reader.readexactly(int(length[0])) if length else b""
            self.heads.append(head)
            self.bodies.append(body)
            writer.write(self._answer(head, body))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


def certified() -> ssl.SSLContext:
    """Return the TLS context of a server of example.org."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.pem"
        path.write_text(CERTIFICATE)
        context.load_cert_chain(path)
    return context


def trusting() -> ssl.SSLContext:
    """Return the TLS context of a client that trusts the authority."""
    return ssl.create_default_context(cadata=AUTHORITY)


@asynccontextmanager
async def hosting(answer: Answer, tls: bool = False) -> AsyncIterator[Host]:
    """A host that answers each request, given head and body, with these bytes."""
    host = Host(answer)
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=certified() if tls else None)
    async with server:
        host.port = server.sockets[0].getsockname()[1]
        yield host


def resolver(**names: str | list[str]) -> Callable[[str], Awaitable[tuple[Address, ...]]]:
    """Answers for names, "_" for ".": an address, several parted by spaces, or a list of answers in turn."""
    turns = {name.replace("_", "."): [given] if isinstance(given, str) else list(given) for name,
             given in names.items()}

    async def resolve(name: str) -> tuple[Address, ...]:
        answers = turns.get(name)
        if not answers:
            raise OSError(-2, "Name or service not known")
        return tuple(map(ip_address, (answers.pop(0) if len(answers) > 1 else answers[0]).split()))

    return resolve
