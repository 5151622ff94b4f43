"""
The texts of faults in what peers send: each a sentence of ours with a code. Pure.

Why:       the text of a library's exception may contain bytes of the peer's, and these a secret's value. So it goes
           neither to a sandbox, nor to a client, nor into the record.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl

#: By code. `fault` returns the text.
FAULTS = {
    "request-head": "the head isn't one of HTTP/1.1",
    "request-body": "the body: its chunks aren't those of HTTP/1.1",
    "request-fields": "the head with its secrets can't be sent",
    "response-head": "HTTP error: the host has sent a head that isn't one of HTTP/1.1",
    "response-body": "HTTP error: the host has sent a body that isn't one of HTTP/1.1",
    "response-cut": "HTTP error: the host has closed the connection before the end of its response",
    "response-none": "HTTP error: the host has closed the connection before its response",
    "response-protocol": "the host has sent a response that isn't one of HTTP/1.1",
    "response-passed": "HTTP error: the host's response can't be passed on",
    "tls-expired": "TLS: the host's certificate: it has expired, or isn't valid yet",
    "tls-self-signed": "TLS: the host's certificate: self-signed, or by an authority that isn't trusted",
    "tls-authority": "TLS: the host's certificate: by an authority that isn't known",
    "tls-name": "TLS: the host's certificate: mismatch, it is for another name",
    "tls-revoked": "TLS: the host's certificate: it is revoked",
    "tls-certificate": "TLS: the host's certificate: it isn't valid",
    "tls-alert": "TLS: the peer has refused the handshake",
    "tls-distrusted": "TLS: the peer doesn't trust the certificate",
    "tls-version": "TLS: no version or cipher that both sides have",
    "tls-none": "TLS: the peer doesn't speak it",
    "tls-ended": "TLS: the peer has closed the connection without TLS's end",
    "tls-record": "TLS: the peer has broken the protocol",
    "dns-name": "Name or service not known",
    "dns-again": "Temporary failure in name resolution",
    "dns-failed": "the resolver has failed",
}

#: Codes by X509_V_ERR_... of <openssl/x509_vfy.h>.
_CERTIFICATES = {9: "tls-expired", 10: "tls-expired", 18: "tls-self-signed", 19: "tls-self-signed", 2: "tls-authority",
                 20: "tls-authority", 21: "tls-authority", 23: "tls-revoked", 62: "tls-name", 64: "tls-name"}

#: Codes by a part of OpenSSL's reason, the first that is in it.
_REASONS = (("EOF", "tls-ended"), ("UNKNOWN_CA", "tls-distrusted"), ("ALERT_BAD_CERTIFICATE", "tls-distrusted"),
            ("ALERT_CERTIFICATE", "tls-distrusted"), ("VERSION_NUMBER", "tls-none"), ("HTTP", "tls-none"),
            ("VERSION", "tls-version"), ("PROTOCOL", "tls-version"), ("CIPHER", "tls-version"),
            ("HANDSHAKE_FAILURE", "tls-version"), ("ALERT", "tls-alert"))

_RESOLVERS = {socket.EAI_NONAME: "dns-name", socket.EAI_NODATA: "dns-name", socket.EAI_AGAIN: "dns-again"}


def fault(code: str) -> str:
    """Return the text for *code*, with the code at its end."""
    return f"{FAULTS[code]} ({code})"


def of_resolver(error: OSError) -> str:
    return fault(_RESOLVERS.get(error.errno or 0, "dns-failed"))


def of_connection(error: OSError) -> str:
    """Return the text for a connection that has failed: the kernel's, by the errno, or that of a fault in TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return fault(_CERTIFICATES.get(error.verify_code, "tls-certificate"))
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return fault(next((code for part, code in _REASONS if part in reason), "tls-record"))
    number = error.errno or 0
    return os.strerror(number).lower() if number in errno.errorcode else "the connection has failed"
