"""
The authority of each sandbox, the placeholders of its secrets, and the file and variables by which programs trust it.

`make` is called when a pool with such a policy is made, `make_for_lease` before a request asks for it. Needs
cryptography, of the extra `egress`.

Stands if: a job reads everything that its sandbox shows, and tells it to another sandbox: the certificate and the
placeholders are worth nothing there, and no sandbox has a key. Leaves: an authority's key in the daemon's memory as
long as its lease exists. It can decrypt only connections of that sandbox, which the broker reads anyway.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
from typing import Any

from leeward.base.dataclass import replace
from leeward.errors import BadRequest, Unsupported
from leeward.spec.egress_policy import Policy, Secret
from leeward.spec.egress_tls import LeaseSeal, Seal, needs_seal
from leeward.spec.sandbox import (
    BUNDLE_VARIABLES,
    MOST_BUNDLE,
    TRUST,
    TRUST_JAVA,
    TRUST_JAVA_LINK,
    TRUST_LINKS,
    Bind,
    SandboxSpec,
    Symlink,
    Text,
    View,
)

#: Where distributions keep the file of all certificates.
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
            "/etc/ssl/cert.pem")

#: Bytes of a policy's file of authorities, at most.
_MOST_TRUSTED = 64 << 10

_LASTS = dt.timedelta(days=3650)


def cryptography() -> tuple[Any, Any, Any]:
    """The modules x509, hashes and ec of that package; Unsupported if it isn't installed."""
    try:
        from cryptography import x509  # of the extra `egress`
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise Unsupported("egress", have="no cryptography", need="it, for TLS that the broker ends",
                          cure="pip install 'leeward[egress]'") from None
    return x509, hashes, ec


def make(policy: Policy) -> Seal | None:
    """
    The seal of a pool with *policy*, None if it terminates no TLS; BadRequest if a secret's source or the file of
    authorities can't be read, Unsupported without cryptography or with too many certificates.
    """
    if not needs_seal(policy):
        return None
    x509, _, _ = cryptography()
    for secret in policy.secrets:
        check_source(secret)
    return Seal(*_host_bundle(), _trusted(policy, x509), tuple(secret.name for secret in policy.secrets))


def make_for_lease(secret_count: int) -> LeaseSeal:
    x509, hashes, ec = cryptography()
    from cryptography.hazmat.primitives import serialization as forms  # of the extra `egress`

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"leeward {secrets.token_hex(8)}")])
    now = dt.datetime.now(dt.UTC)
    usage = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
                           "key_agreement", "encipher_only", "decipher_only"), False)
    made = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + _LASTS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256()))
    return LeaseSeal(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()),
                     made.public_bytes(forms.Encoding.PEM),
                     tuple(f"leeward-{secrets.token_hex(16)}" for _ in range(secret_count)))


def trusting(spec: SandboxSpec, seal: Seal) -> SandboxSpec:
    """*spec* with files of certificates for each sandbox, which are empty until the daemon writes them."""
    folders = {os.path.dirname(path) for path in (TRUST, *TRUST_LINKS, TRUST_JAVA_LINK)} - {"/etc/ssl"}
    view = replace(spec.view,
                   binds=tuple(bind for bind in spec.view.binds if bind.target not in folders),
                   texts=(*spec.view.texts, Text(TRUST, b""), Text(TRUST_JAVA, b"")),
                   links=(*spec.view.links, *(Symlink(path, TRUST) for path in TRUST_LINKS),
                          Symlink(TRUST_JAVA_LINK, TRUST_JAVA)))
    variables = dict.fromkeys(BUNDLE_VARIABLES, TRUST)
    return replace(spec, view=view, seal=seal, environment=tuple({**dict(spec.environment), **variables}.items()))


def backstage(view: View, seal: Seal) -> View:
    """The zygote's version of *view* from `trusting`, because modules that it imports may read the file."""
    if not seal.bundle:
        return view
    return replace(view, binds=(*view.binds, Bind(os.path.realpath(seal.bundle), TRUST, file=True)),
                   texts=tuple(text for text in view.texts if text.target != TRUST))


def check_source(secret: Secret) -> None:
    """Check that a secret's source exists, without reading the value; BadRequest names the secret and the reason."""
    kind, _, rest = secret.source.partition(":")
    why = ""
    if kind == "env" and rest not in os.environ:
        why = f"the daemon's environment has no variable {rest!r:.80}"
    elif kind == "file":
        try:
            os.close(os.open(rest, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            why = f"{rest!r:.200}: {error.strerror}"
    if why:
        raise BadRequest(f"the secret {secret.name} can't be had: {why}")


def _host_bundle() -> tuple[str, bytes]:
    for path in _BUNDLES:
        try:
            with open(path, "rb") as file:
                data = file.read(MOST_BUNDLE + 1)
        except OSError:
            continue
        if len(data) > MOST_BUNDLE:
            raise Unsupported("egress", have=f"a file of certificates, {path}, of more than {MOST_BUNDLE} bytes",
                              need="a smaller one, for sandboxes whose TLS the broker ends")
        return path, data
    return "", b""


def _trusted(policy: Policy, x509: Any) -> bytes:
    if not policy.authorities:
        return b""
    try:
        with open(policy.authorities, "rb") as file:
            data = file.read(_MOST_TRUSTED + 1)
        if len(data) > _MOST_TRUSTED:
            raise ValueError(f"more than {_MOST_TRUSTED} bytes")
        return b"".join(map(_pem, x509.load_pem_x509_certificates(data)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadRequest(f"authorities, {policy.authorities!r:.200}: {reason}") from None


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding  # of the extra `egress`

    data: bytes = certificate.public_bytes(Encoding.PEM)
    return data
