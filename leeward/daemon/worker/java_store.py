"""
Certificates as Java reads them: a store of the kind JKS, which each of its versions takes for the default kind.

The last entry is the job's own, so a store is a beginning, which all jobs of a pool share, and a rest.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import re
import struct

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")

#: What the digest begins with: Java's usual password, which protects nothing here, and the words of the format.
_SALT = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"


def _entries(certificates: bytes, first: int) -> list[bytes]:
    entries = []
    for number, text in enumerate(_PEM.findall(certificates), first):
        with contextlib.suppress(ValueError):  # one that isn't base64 is left out
            der, alias = base64.b64decode(text), b"%d" % number
            entries.append(struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">QH", 0, 5) + b"X.509"
                           + struct.pack(">I", len(der)) + der)
    return entries


@functools.lru_cache(16)
def beginning(certificates: bytes) -> bytes:
    """The store of *certificates* (PEM), without its last entry and digest."""
    entries = _entries(certificates, 1)
    return struct.pack(">III", 0xFEEDFEED, 2, len(entries) + 1) + b"".join(entries)


def rest(begun: bytes, certificate: bytes) -> bytes:
    """What follows *begun*: *certificate* (PEM), and the digest, which Java compares if it is given the password."""
    last = b"".join(_entries(certificate, 0)[:1])
    return last + hashlib.sha1(_SALT + begun + last, usedforsecurity=False).digest()
