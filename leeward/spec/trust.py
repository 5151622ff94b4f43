"""
The file of certificates that a sandbox gets if the broker ends its TLS.

Runs in:   anywhere; pure. The daemon writes it: `worker.keeper`.
"""

from __future__ import annotations

from leeward.spec.sandbox import View

#: The file, and links to it: where programs look for all certificates by default.
TRUST = "/etc/ssl/certs/ca-certificates.crt"
LINKS = ("/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt")

#: The environment variables that name that file to programs.
BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")

#: Bytes of the host's certificates in it, at most.
MOST_BUNDLE = 4 << 20


def has_trust(view: View) -> bool:
    """Whether *view* has such a file."""
    return any(text.target == TRUST for text in view.texts)
