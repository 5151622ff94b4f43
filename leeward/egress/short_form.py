"""
The short form of a client's policy: domains, methods, schemes and limits. Pure; for broker and daemon.

A missing key means the strictest value, except for `allowed_methods`: without `allowed_domains` nothing is allowed, and
private addresses are refused unless `deny_private_ips` is false. Even then the metadata services of clouds are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.egress.addresses import RANGES
from leeward.spec.egress_policy import Policy, PolicyError, parse_policy

#: The ranges that `deny_private_ips = false` permits. Metadata services have separate ranges, which none of these
#: includes.
_PRIVATE = tuple(str(each.network) for each in RANGES if each.what in ("private", "loopback", "link-local"))

#: Each key, and its key in a policy's table, where limits are in a table of their own.
_KEYS = {
    "allowed_domains": "allow", "blocked_domains": "deny", "allowed_methods": "methods", "allowed_schemes": "schemes",
    "max_request_body": "limits.request", "max_response_body": "limits.response", "connect_timeout": "limits.connect",
    "request_timeout": "limits.total", "max_redirects": "limits.redirects", "max_concurrent": "limits.connections",
    "max_requests_per_minute": "limits.per_minute",
}


def is_short_form(given: Mapping[str, Any]) -> bool:
    """Whether *given* is in the short form and isn't a policy's table; the two have no key in common."""
    return "deny_private_ips" in given or not _KEYS.keys().isdisjoint(given)


def parse_short_form(given: object, place: str = "fetch_policy") -> Policy:
    """Parse a policy in the short form; PolicyError names the key below *place* as it was given, and what to write."""
    if not isinstance(given, Mapping):
        raise PolicyError(place, "a policy is a table")
    table: dict[str, Any] = {"limits": {}}
    for key, value in given.items():
        if key == "deny_private_ips":
            if type(value) is not bool:
                raise PolicyError(f"{place}.{key}", f"must be true or false, not {value!r:.40}")
            table["addresses"] = [] if value else list(_PRIVATE)
        elif key in _KEYS:
            _, point, limit = _KEYS[key].partition(".")
            if point:
                table["limits"][limit] = value
            else:
                table[_KEYS[key]] = value
        else:
            known = ", ".join([*_KEYS, "deny_private_ips"])
            raise PolicyError(f"{place}.{str(key)[:60]}", f"unknown; these are known: {known}")
    try:
        return parse_policy(table)
    except PolicyError as error:
        raise PolicyError(f"{place}.{_given(error.place)}", error.reason, error.cure) from None


def _given(place: str) -> str:
    key, bracket, rest = place.partition("[")
    short = {long: name for name, long in _KEYS.items()}
    return short.get(key, key) + bracket + rest
