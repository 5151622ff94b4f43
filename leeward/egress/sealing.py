"""
Connections whose TLS ends in the broker: certificates, handshakes with sandboxes and hosts, and secrets in requests.
Needs cryptography.

Holds:     a secret's value is in this process's memory alone: no message and no error contains it, and the process
           writes no core and can't be traced (main.py).
Bound:     _MOST_CONTEXTS contexts of one authority; the least recently used one is dropped.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import re
import ssl
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from leeward.base.closing import OwnedFd, on_failure
from leeward.egress.heads import Head
from leeward.egress.injection import Injection, Known, Searched
from leeward.egress.pipes import Pipe, TlsPipe
from leeward.egress.tenancy import refusal
from leeward.spec.egress_policy import Policy
from leeward.spec.egress_tls import is_for
from leeward.wire.egress_control import Leased, Sealed

#: Bytes of a value, at least and at most. Shorter values could occur in responses by chance.
LEAST, MOST = 8, 4096

_VALUE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")


class Values:
    """The values of a pool's secrets, read from *fds*, which are owned from now on."""

    def __init__(self, names: Sequence[str], fds: Sequence[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._values: dict[str, asyncio.Future[bytes | str]] = {}
        self._fds: set[int] = set()
        for name, fd in zip(names, fds, strict=True):
            self._values[name] = self._loop.create_future()
            self._fds.add(fd)
            self._loop.add_reader(fd, self._read, name, fd, bytearray())

    def _read(self, name: str, fd: int, data: bytearray) -> None:
        try:
            piece = os.read(fd, MOST + 3 - len(data))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        data += piece
        if piece and len(data) < MOST + 3:
            return
        self._close_source(fd)
        self._values[name].set_result(checked(bytes(data)))

    def _close_source(self, fd: int) -> None:
        self._fds.discard(fd)
        self._loop.remove_reader(fd)
        os.close(fd)

    async def get(self, name: str, seconds: float) -> bytes | str:
        """The value of the secret *name* as bytes, for which it waits, or as a text the reason why there is none."""
        value = self._values.get(name)
        if value is None:
            return "the broker wasn't told of it"
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asyncio.shield(value)
        return f"its source has told nothing for {seconds:g} s"

    def close(self) -> None:
        for fd in list(self._fds):
            self._close_source(fd)
        for value in self._values.values():
            value.cancel()
        self._values.clear()


def checked(data: bytes) -> bytes | str:
    """Return the value in a source's output, or the reason why it is invalid, which contains no byte of the value."""
    if not data.endswith(b"\0"):
        return "its source has failed" if len(data) <= MOST + 2 else f"it has more than {MOST} bytes"
    value = data[:-1].rstrip(b"\r\n")
    if not LEAST <= len(value) <= MOST:
        return f"it has {len(value)} bytes, and must have from {LEAST} to {MOST}"
    if not _VALUE.fullmatch(value):
        return "it has other bytes than printable ASCII in one line, or spaces at its ends"
    return value


_MOST_CONTEXTS = 256

#: The protocols that the broker names in ALPN: it reads no other one.
_PROTOCOLS = ["http/1.1"]


class Certificates:
    """
    The certificates of one sandbox, by its authority's private key *signer* and *certificate*, both PEM.

    Most sandboxes never need one, so no key is read or made before the first.
    """

    def __init__(self, signer: bytes, certificate: bytes) -> None:
        self._signer, self._certificate = signer, certificate
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    def towards_sandboxes(self, name: str) -> ssl.SSLContext:
        """Return the TLS context with which the broker answers a sandbox in place of the host *name*."""
        context = self._contexts.pop(name, None)
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_alpn_protocols(_PROTOCOLS)
            _load(context, self.certificate(name).public_bytes(Encoding.PEM),
                  self._own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self._contexts[name] = context
        if len(self._contexts) > _MOST_CONTEXTS:
            self._contexts.popitem(last=False)
        return context

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        made = load_pem_private_key(self._signer, None)
        assert isinstance(made, ec.EllipticCurvePrivateKey)
        return made

    @cached_property
    def _own(self) -> ec.EllipticCurvePrivateKey:
        """The private key of all certificates that are made here."""
        return ec.generate_private_key(ec.SECP256R1())

    def certificate(self, name: str) -> x509.Certificate:
        """Make a certificate for *name*, which is in the form of `parse_host`, signed by the authority."""
        of = x509.load_pem_x509_certificate(self._certificate)
        now = dt.datetime.now(dt.UTC)
        usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                               "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
        identifier = of.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return (x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(of.subject)
                .public_key(self._own.public_key()).serial_number(x509.random_serial_number())
                .not_valid_before(now - dt.timedelta(hours=12)).not_valid_after(of.not_valid_after_utc)
                .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(x509.KeyUsage(digital_signature=True, **usage), critical=True)
                .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
                .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
                               critical=False)
                .sign(self._key, hashes.SHA256()))


def towards_hosts(bundle: str, trusted: bytes) -> ssl.SSLContext:
    """The TLS context that verifies hosts, by the file *bundle*, "" for OpenSSL's default, and *trusted*, PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(_PROTOCOLS)
    with suppress(OSError):  # without these certificates every connection to a host is refused
        if bundle:
            context.load_verify_locations(bundle)
        else:
            context.load_default_certs()
    if trusted:
        context.load_verify_locations(cadata=trusted.decode())
    return context


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """
    Load a certificate and its key. Python takes them from files alone, and the broker can't write any: so both are in
    pipes, which Landlock lets it open below /proc/self.
    """
    fds = []
    try:
        for data in (certificate, key):
            out, into = os.pipe2(os.O_CLOEXEC)
            fds.append(out)
            with OwnedFd(into):
                os.write(into, data)  # far less than a pipe holds
        context.load_cert_chain(*(f"/proc/self/fd/{fd}" for fd in fds))
    finally:
        for fd in fds:
            os.close(fd)


class PoolSealing:
    """What the sandboxes of a pool share: the values of its secrets, read from *fds*, and the context for hosts."""

    def __init__(self, message: Sealed, fds: Sequence[int]) -> None:
        self._message = message
        self.secrets = tuple(message.secrets)
        self.values = Values(message.secrets, fds)
        self._searched: dict[tuple[bytes, ...], Searched] = {}

    @cached_property
    def trust(self) -> ssl.SSLContext:
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
    """Ends the TLS of one sandbox's connections, and finds the secrets for its requests."""

    def __init__(self, pool: PoolSealing, message: Leased) -> None:
        self._pool, self._values = pool, pool.values
        self._certificates = Certificates(message.signer, message.certificate)
        self._placeholders = {name: text.encode()
                              for name, text in zip(pool.secrets, message.placeholders, strict=True)}

    @property
    def trust(self) -> ssl.SSLContext:
        return self._pool.trust

    async def inner(self, client: Pipe, name: str, seconds: float) -> Pipe:
        """
        The pipe in the clear, which owns *client*, after a handshake with a sandbox in place of the host *name*.

        Raises NotAllowed if it failed, OSError if the sandbox has gone; then *client* stays the caller's.
        """
        pipe = TlsPipe(client, self._certificates.towards_sandboxes(name))
        await pipe.shake_hands(seconds)
        return pipe

    async def outer(self, server: Pipe, name: str, seconds: float) -> Pipe:
        """
        The pipe in the clear, which owns *server*, after a handshake with the host *name*, which is verified.

        Raises NotAllowed if it failed, OSError if the host has gone; then *server* is closed.
        """
        pipe = TlsPipe(server, self.trust, name)
        with on_failure(server.close):
            await pipe.shake_hands(seconds)
        return pipe

    async def injection(self, policy: Policy, head: Head, seconds: float) -> Injection | None:
        """
        The injection of secrets into the request of *head*, for whose values it waits; None if none is for its host and
        port.

        Raises NotAllowed if a secret has no value, HeadError if the request asks for another protocol.
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
                raise refusal(f"the secret {each.name} can't be had: {value}", failed=True, status=502)
        return Injection(head, known, self._pool.searched(tuple(each.value for each in known)))


def _has(head: Head, placeholder: bytes) -> bool:
    """Whether the request may contain the secret's placeholder, also in credentials in base64."""
    return (placeholder in head.target.encode()
            or any(placeholder in value or name == b"authorization" for name, value in head.fields))
