"""The TLS that the broker ends, and what sandboxes need for it: certificates, an authority, placeholders (`pool.seals`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leeward.spec.egress_policy import Policy, Secret
from leeward.spec.egress_rules import EgressRule
from leeward.spec.hosts import is_below


@dataclass(frozen=True, slots=True, repr=False)
class Seal:
    """The data for TLS that the broker ends which all sandboxes of a pool share."""

    bundle: str  # the path of the host's file of certificates, "" if it has none
    certificates: bytes  # the content of that file
    trusted: bytes  # certificates of the policy's own authorities, PEM
    secrets: tuple[str, ...]  # the names of the policy's secrets


@dataclass(frozen=True, slots=True, repr=False)
class LeaseSeal:
    """The data for TLS that the broker ends which belong to one sandbox only."""

    key: bytes  # the private key of the sandbox's authority, PEM. It goes to the broker, and to no sandbox.
    certificate: bytes  # the certificate of the authority, PEM
    placeholders: tuple[str, ...]  # the placeholders for the pool's secrets, in the order of the secrets


def needs_seal(policy: Policy) -> bool:
    """Whether the broker ends TLS under *policy*, or sandboxes trust authorities of the policy's own."""
    return any(each.secrets or each.methods or each.authorities
               or any(rule.methods or rule.path for rule in _tls_rules(each)) for each in _all(policy))


def ends(policy: Policy, name: str, port: int) -> bool:
    """Whether the broker ends TLS to *name* at *port*: for a secret there, or for rules or a policy of methods or paths."""
    return bool(name) and any(
        each.methods or any(is_for(secret, name, port) for secret in each.secrets)
        or any((rule.methods or rule.path) and rule.names_host(name, None) for rule in _tls_rules(each))
        for each in _all(policy))


def is_for(secret: Secret, name: str, port: int) -> bool:
    for text in secret.hosts:
        host, _, named = text.partition(":")
        if named in ("", str(port)) and (is_below(name, host[2:]) if host.startswith("*.") else name == host):
            return True
    return False


def _tls_rules(policy: Policy) -> Iterator[EgressRule]:
    return (rule for rule in (*policy.allow, *policy.deny, *policy.ask) if rule.scheme != "http")


def _all(policy: Policy) -> Iterator[Policy]:
    one: Policy | None = policy
    while one is not None:
        yield one
        one = one.within
