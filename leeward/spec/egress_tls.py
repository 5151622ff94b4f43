"""
Which TLS the broker ends, and what a sandbox needs for it: an authority, placeholders, a file and variables of trust.

Runs in:   anywhere; pure. `pool.seals` makes these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from leeward.spec.egress import Policy, Secret
from leeward.spec.egress_rules import EgressRule
from leeward.spec.hosts import is_below


class Trusted(Protocol):
    """
    A file on this host.
    """

    path: str


#: Where programs look for the file of certificates by default.
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt")

#: The variables by which programs are told of that file.
BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


@dataclass(frozen=True, slots=True, repr=False)
class Seal:
    """
    What the sandboxes of a pool have for TLS that the broker ends.

    Attributes:
        key: the authority's private key, PEM. It goes to the broker, and to no sandbox.
        certificate: the authority's, PEM.
        bundle: the host's file of certificates, "" where it has none.
        trusted: certificates of the policy's own authorities, PEM.
        trust: the file of what sandboxes trust: the host's certificates and the authority's. It has a `path`, and is
            there as long as this object is.
        placeholders: of the policy's secrets, in their order.
    """

    key: bytes
    certificate: bytes
    bundle: str
    trusted: bytes
    trust: Trusted
    placeholders: tuple[str, ...]


def needs_seal(policy: Policy) -> bool:
    """
    Is there TLS that the broker ends under *policy*, or an authority of its own, by which it verifies hosts for
    `fetch`?
    """
    return any(each.secrets or each.methods or each.authorities
               or any(rule.methods or rule.path for rule in _tls_rules(each)) for each in _all(policy))


def ends(policy: Policy, name: str) -> bool:
    """
    Does the broker end TLS to *name*? To a secret's hosts, and where a rule for it, or all of the policy, is about
    methods or paths.
    """
    return bool(name) and any(
        each.methods or any(is_for(secret, name) for secret in each.secrets)
        or any((rule.methods or rule.path) and rule.names_host(name, None) for rule in _tls_rules(each))
        for each in _all(policy))


def is_for(secret: Secret, name: str) -> bool:
    """
    Is *name* one of the secret's hosts?
    """
    return any(is_below(name, host[2:]) if host.startswith("*.") else name == host for host in secret.hosts)


def _tls_rules(policy: Policy) -> Iterator[EgressRule]:
    return (rule for rule in (*policy.allow, *policy.deny, *policy.ask) if rule.scheme != "http")


def _all(policy: Policy) -> Iterator[Policy]:
    one: Policy | None = policy
    while one is not None:
        yield one
        one = one.within
