"""
Policies of egress: what a sandbox may reach, as data. `egress.policy` decides by it.

Trust:     a table of the configuration is the operator's, a map may be any client's: both become a Policy, or
           PolicyError with the place, the reason and what to write instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from leeward.base.dataclass import dataclass, field, names, replace
from leeward.errors import brief
from leeward.spec.egress_rules import METHODS, SCHEMES, EgressRule, Network, PolicyError, parse_rule
from leeward.spec.sizes import parse_size

__all__ = ["EgressLimits", "Policy", "PolicyError", "EgressRule", "Secret", "NETWORK", "narrow", "parse_policy",
           "parse_rule", "policy_map", "ports_of"]

#: Bounds of one policy: rules in each list, ranges of `addresses`, ports, secrets, and hosts of a secret.
MAX_RULES, MAX_RANGES, MAX_PORTS, MAX_SECRETS, MAX_HOSTS = 1000, 256, 64, 16, 64

#: Parts of a request in which the broker puts a secret's value.
PLACES = ("header", "query", "body")

#: How deep policies may be nested by `within`.
MAX_DEPTH = 4

#: A policy's name has at most 64 characters.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class EgressLimits:
    connections: int = 50  # at once
    per_minute: int = 500  # connections or requests that may begin in a minute
    request: int = 10 << 20  # bytes that one request may carry
    response: int = 50 << 20  # bytes that one response may carry
    redirects: int = 10  # redirects that `fetch` follows
    connect: float = 10.0  # seconds for a connection to be made
    total: float = 30.0  # seconds for one request of `fetch`
    ask: float = 300.0  # seconds for which a request that a rule of `ask` matches waits for an answer


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that a policy puts into requests: its name and its hosts, never its value."""

    name: str  # the name of the variable that jobs see
    hosts: tuple[str, ...]  # names, "*.NAME" for sub-domains, with ":PORT" for that port alone
    source: str = ""  # "env:NAME", "file:PATH" or "command:..."; "" in a client's, which can't name one
    places: tuple[str, ...] = ("header",)  # the parts of a request in which the secret may be, of PLACES


@dataclass(frozen=True, slots=True)
class Policy:
    """What a sandbox may reach. A policy with nothing but a name allows nothing."""

    name: str = ""  # the operator's, or ""
    allow: tuple[EgressRule, ...] = ()  # what may be reached
    deny: tuple[EgressRule, ...] = ()  # what may not be reached, whatever `allow` says
    ask: tuple[EgressRule, ...] = ()  # what a person decides, unless `deny` or `allow` has decided
    ports: tuple[int, ...] = (80, 443)  # the ports of rules in `allow` and `ask` that name none
    addresses: tuple[Network, ...] = ()  # ranges that are otherwise refused, and to which an allowed name may resolve
    methods: tuple[str, ...] = ()  # allowed ones; () is any. With methods, requests that can't be read are refused.
    schemes: tuple[str, ...] = ()  # allowed schemes, "http", "https" or both, and nothing else passes; () is any
    limits: EgressLimits = field(default_factory=EgressLimits)  # of one sandbox
    secrets: tuple[Secret, ...] = ()  # the secrets that the broker puts into requests
    authorities: str = ""  # a file with certificates of further authorities, which sandboxes and the broker trust
    proxy: bool = False  # variables name the proxy to programs; the operator's alone, since all of a pool have them
    within: Policy | None = None  # another policy that has to allow a request as well; `narrow` makes such a policy


#: The range of each limit.
_LIMITS: dict[str, tuple[float, float]] = {
    "connections": (1, 100_000), "per_minute": (1, 1_000_000), "request": (0, 1 << 40), "response": (0, 1 << 40),
    "redirects": (0, 50), "connect": (0.001, 600.0), "total": (0.001, 86400.0),
    "ask": (0.001, 86400.0),
}

#: The keys of a policy's table or map.
KEYS = names(Policy)[1:]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")


def parse_policy(table: object, place: str = "", name: str = "", *, depth: int = 0) -> Policy:
    """
    Make a policy *name* from a table of the configuration at *place*, or a map of `policy_map`, that narrows *depth*
    others.

    Raises PolicyError: the key, what is wrong with it, and what to write.
    """
    if not isinstance(table, Mapping):
        raise PolicyError(place, "a policy is a table")
    if depth >= MAX_DEPTH:
        raise PolicyError(place, f"more than {MAX_DEPTH} policies within each other")
    if name and not _NAME.fullmatch(name):
        raise PolicyError(place, f"{brief(name, 80)} can't be a policy's name",
                          'letters, digits, "_", "-" and ".", a letter first')
    for key in table:
        if key not in KEYS:
            raise PolicyError(_at(place, str(key)[:60]), f"unknown; these are known: {', '.join(KEYS)}")
    values: dict[str, Any] = {}
    for key, value in table.items():
        where = _at(place, key)
        if key in ("allow", "deny", "ask"):
            values[key] = _each(value, where, MAX_RULES, parse_rule)
        elif key == "within":
            values[key] = None if value is None else parse_policy(value, where, depth=depth + 1)
        else:
            values[key] = _PARSERS[key](value, where)
    return Policy(name, **values)


def policy_map(policy: Policy) -> dict[str, Any]:
    """Return *policy* as a map of texts and numbers, without its name. `parse_policy` makes an equal policy of it."""
    return {
        **{key: [rule.text for rule in getattr(policy, key)] for key in ("allow", "deny", "ask")},
        "ports": list(policy.ports),
        "addresses": [str(network) for network in policy.addresses],
        "methods": list(policy.methods),
        "schemes": list(policy.schemes),
        "limits": {key: getattr(policy.limits, key) for key in _LIMITS},
        "secrets": {each.name: {**({"from": each.source} if each.source else {}), "hosts": list(each.hosts),
                                "in": list(each.places)} for each in policy.secrets},
        "authorities": policy.authorities,
        "proxy": policy.proxy,
        **({} if policy.within is None else {"within": {**policy_map(policy.within)}}),
    }


def narrow(operator: Policy, client: Policy) -> Policy:
    """
    Return *client*'s policy within *operator*'s: the stricter decision and the smaller limits hold, and it has the
    secrets that both policies name, for the hosts and places that both name.

    Raises PolicyError for a secret or host that the operator's doesn't name, or too many policies within each other.
    """
    own = {each.name: each for each in operator.secrets}
    secrets = []
    for each in client.secrets:
        if each.name not in own:
            raise PolicyError(f"secrets.{each.name}", "the operator's policy has no such secret")
        beyond = [host for host in each.hosts if not {host, host.partition(":")[0]} & set(own[each.name].hosts)]
        if beyond:
            raise PolicyError(f"secrets.{each.name}.hosts", f"{brief(beyond[0], 80)} isn't one of the operator's hosts",
                              f"these are: {', '.join(own[each.name].hosts)}")
        places = tuple(place for place in each.places if place in own[each.name].places)
        secrets.append(replace(own[each.name], hosts=each.hosts, places=places))
    limits = EgressLimits(**{key: min(getattr(operator.limits, key), getattr(client.limits, key)) for key in _LIMITS})
    policies, bottom = 1, client
    while bottom.within is not None:
        bottom, policies = bottom.within, policies + 1
    above = operator
    while above.within is not None:
        above, policies = above.within, policies + 1
    if policies >= MAX_DEPTH:
        raise PolicyError("within", f"more than {MAX_DEPTH} policies within each other")
    return replace(_onto(client, operator), name=client.name or operator.name, limits=limits, secrets=tuple(secrets),
                   authorities=operator.authorities)


def _onto(policy: Policy, last: Policy) -> Policy:
    return replace(policy, within=last if policy.within is None else _onto(policy.within, last))


def ports_of(policy: Policy) -> tuple[int, ...]:
    """Return the ports to which a request could be allowed, in order. No other port needs a listener."""
    ports = set()
    for rule in (*policy.allow, *policy.ask):
        ports |= {rule.port} if rule.port else {SCHEMES[rule.scheme]} if rule.scheme else set(policy.ports)
    if policy.within is not None:
        ports &= set(ports_of(policy.within))
    return tuple(sorted(ports))


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _each(value: object, place: str, most: int, parse: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise PolicyError(place, "must be an array")
    if len(value) > most:
        raise PolicyError(place, f"has {len(value)} entries, {most} are the most")
    return tuple(dict.fromkeys(parse(each, f"{place}[{number}]") for number, each in enumerate(value)))


def _port(value: object, place: str) -> int:
    if type(value) is not int or not 1 <= value <= 65535:
        raise PolicyError(place, f"a port is a number from 1 to 65535, not {brief(value)}")
    return value


def _range(value: object, place: str) -> Network:
    rule = parse_rule(value, place) if isinstance(value, str) else None
    if rule is None or rule.network is None or rule.port or not rule.is_whole:
        raise PolicyError(place, f"{brief(value, 80)} is not a range of addresses",
                          'write "10.1.0.0/16" or one address')
    return rule.network


def _word(known: tuple[str, ...], what: str, upper: bool) -> Callable[[object, str], str]:
    def parse(value: object, place: str) -> str:
        word = value.upper() if upper and isinstance(value, str) else value
        if not isinstance(word, str) or word not in known:
            raise PolicyError(place, f"{brief(value)} is not a known {what}", f"these are known: {', '.join(known)}")
        return word
    return parse


def _limits(value: object, place: str) -> EgressLimits:
    if not isinstance(value, Mapping):
        raise PolicyError(place, "must be a table")
    given: dict[str, Any] = {}
    for key, each in value.items():
        where = _at(place, str(key)[:60])
        if key not in _LIMITS:
            raise PolicyError(where, f"unknown; these are known: {', '.join(_LIMITS)}")
        least, most = _LIMITS[key]
        number = _number(key, each, where)
        if not least <= number <= most:
            raise PolicyError(where, f"must be from {least:g} to {most:g}, not {brief(each)}")
        given[key] = number
    return EgressLimits(**given)


def _number(key: str, value: object, place: str) -> float:
    if key in ("connect", "total", "ask"):
        found = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if found:
            return float(found[1]) * _UNITS[found[2]]
        if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
            raise PolicyError(place, f"{brief(value)} is not a time", 'write seconds, or "10s"')
        return float(value)  # type: ignore[arg-type]
    if key in ("request", "response") and isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError as error:
            raise PolicyError(place, str(error)) from None
    if type(value) is not int:
        raise PolicyError(place, f"must be a whole number, not {brief(value)}")
    return value


def _secrets(value: object, place: str) -> tuple[Secret, ...]:
    if not isinstance(value, Mapping):
        raise PolicyError(place, "must be a table")
    if len(value) > MAX_SECRETS:
        raise PolicyError(place, f"has {len(value)} entries, {MAX_SECRETS} are the most")
    secrets = []
    for name, about in value.items():
        where = _at(place, str(name)[:60])
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise PolicyError(where, "not the name of a variable")
        if not isinstance(about, Mapping) or not {"hosts"} <= set(about) <= {"hosts", "from", "in"}:
            raise PolicyError(where, "must be a table with `hosts`, perhaps `in`, and `from` in the operator's")
        hosts = _each(about["hosts"], _at(where, "hosts"), MAX_HOSTS, _secret_host)
        if not hosts:
            raise PolicyError(where, "the secret has no hosts", "name them in `hosts`")
        source = about.get("from", "")
        kind, colon, rest = source.partition(":") if isinstance(source, str) else ("", "", "")
        if "from" in about and not (kind in ("env", "file", "command") and colon and 0 < len(rest) <= 4096):
            raise PolicyError(_at(where, "from"), "this doesn't say where the value is",
                              'write "env:NAME", "file:PATH" or "command:..."')
        places = _each(about.get("in", ["header"]), _at(where, "in"), len(PLACES), _word(PLACES, "place", False))
        secrets.append(Secret(name, hosts, source, tuple(place for place in PLACES if place in places)))
    return tuple(secrets)


def _authorities(value: object, place: str) -> str:
    if not isinstance(value, str) or (value and not value.startswith("/")) or not value.isprintable():
        raise PolicyError(place, f"{brief(value, 80)} is not the path of a file",
                          'write "/etc/leeward/authorities.pem"')
    return value


def _proxy(value: object, place: str) -> bool:
    if type(value) is not bool:
        raise PolicyError(place, f"must be true or false, not {brief(value)}")
    return value


def _secret_host(value: Any, place: str) -> str:
    rule = parse_rule(value, place)
    if rule.kind not in ("name", "below") or not rule.is_whole:
        raise PolicyError(place, f"{brief(value, 80)} is not the name of a host",
                          'write "api.example.org", "*.example.org" or "api.example.org:8443"')
    return rule.text


_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "ports": lambda value, place: tuple(sorted(_each(value, place, MAX_PORTS, _port))),
    "addresses": lambda value, place: _each(value, place, MAX_RANGES, _range),
    "methods": lambda value, place: tuple(sorted(_each(value, place, len(METHODS), _word(METHODS, "method", True)))),
    "schemes": lambda value, place: tuple(sorted(_each(value, place, len(SCHEMES), _word(tuple(SCHEMES), "scheme",
                                                                                          False)))),
    "limits": _limits,
    "secrets": _secrets,
    "authorities": _authorities,
    "proxy": _proxy,
}

#: `allow_network=true`, `--network`: all public names and addresses.
NETWORK = Policy("network", allow=(parse_rule("*"),))

assert tuple(_LIMITS) == names(EgressLimits)

#: The most that a client's policy can allow an agent of the daemon's own user if the operator has no [egress.agent]:
#: all public names and addresses, and those of private networks and of this host that the client's policy names.
_NEAR = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "fc00::/7", "::1")
AGENT_PORTS = (22, 80, 443, 2222, 3000, 5432, 8000, 8080, 8443)
AGENT = parse_policy({"allow": ["*", *_NEAR], "addresses": list(_NEAR), "ports": list(AGENT_PORTS),
                      "limits": {"connections": 256, "per_minute": 3000, "request": 1 << 30, "response": 8 << 30}},
                     name="agent")
