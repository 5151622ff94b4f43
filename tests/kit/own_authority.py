"""An authority of the tests' own, and a certificate by it for a name and those below it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path


def certified(folder: Path, name: str) -> tuple[Path, Path]:
    """The file of the authority, and that of the certificate with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now, found = dt.datetime.now(dt.UTC), list[bytes]()
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    for is_authority in (True, False):
        key = authority if is_authority else ec.generate_private_key(ec.SECP256R1())
        subject = issuer if is_authority else x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        made = (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
                .serial_number(x509.random_serial_number()).not_valid_before(now - dt.timedelta(days=1))
                .not_valid_after(now + dt.timedelta(days=2))
                .add_extension(x509.BasicConstraints(is_authority, None), critical=True))
        if not is_authority:
            names = [x509.DNSName(name), x509.DNSName(f"*.{name}")]
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        found.append(made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        if not is_authority:
            found.append(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                           serialization.NoEncryption()))
    (folder / "authority.pem").write_bytes(found[0])
    (folder / "host.pem").write_bytes(b"".join(found[1:]))
    return folder / "authority.pem", folder / "host.pem"
