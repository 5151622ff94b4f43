"""
Contexts of TLS: towards a sandbox, with a certificate of its authority for each name; and towards hosts.

Runs in:   the broker. Needs cryptography, of the extra `egress`.
Bound:     _MOST contexts of one authority; the least recently used one is dropped.
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

_MOST = 256

#: The protocols that the broker names in ALPN: it reads no other one.
_PROTOCOLS = ["http/1.1"]


class Certificates:
    """
    The certificates with which the broker ends the TLS of one sandbox. Most sandboxes never need one, so no key is read
    or made before the first.

    Args:
        signer, certificate: the private key and the certificate of the sandbox's authority, PEM.
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
        if len(self._contexts) > _MOST:
            self._contexts.popitem(last=False)
        return context

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        made = load_pem_private_key(self._signer, None)
        assert isinstance(made, ec.EllipticCurvePrivateKey)
        return made

    @cached_property
    def _authority(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self._certificate)

    @cached_property
    def _own(self) -> ec.EllipticCurvePrivateKey:
        """The private key of all certificates that are made here."""
        return ec.generate_private_key(ec.SECP256R1())

    def certificate(self, name: str) -> x509.Certificate:
        """Make a certificate for *name*, which is in the form of `parse_host`, signed by the authority."""
        of = self._authority
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
    """
    Make the TLS context that verifies hosts.

    Args:
        bundle: path of the file of trusted certificates; "" for OpenSSL's default ones.
        trusted: further trusted certificates, PEM.
    """
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
    Load a certificate and its private key, both PEM, into *context*. Python loads them from files alone, and the broker
    can't write files. So both are passed in pipes, which Landlock lets it open by their names below /proc/self.
    """
    fds = []
    try:
        for data in (certificate, key):
            out, into = os.pipe2(os.O_CLOEXEC)
            fds.append(out)
            try:
                os.write(into, data)  # far less than a pipe holds
            finally:
                os.close(into)
        context.load_cert_chain(*(f"/proc/self/fd/{fd}" for fd in fds))
    finally:
        for fd in fds:
            os.close(fd)
