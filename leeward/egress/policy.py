"""
The decision of egress: what a policy says about a request. Pure.

Order:     the policy's schemes and methods, then the rules of `deny`, `allow` and `ask`. The first rule that matches
           decides; without one the request is denied. Where a policy is within another, both decide, and the stricter
           decision counts.
In doubt:  a property that can't be seen matches a rule of `deny` and none of `allow`. So a rule about methods or paths
           allows no connection whose requests the broker can't read.

A name is decided twice: first without an address, where "need-address" means that its addresses have to be resolved;
then with each address. An address that is allowed is dialled, and the name isn't resolved again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from leeward.egress.addresses import Range, opened, range_of
from leeward.spec.egress_policy import EgressRule, Policy
from leeward.spec.egress_rules import SCHEMES, compared_path
from leeward.spec.hosts import Address, unmapped

ALLOW, DENY, ASK, NEED_ADDRESS = "allow", "deny", "ask", "need-address"

#: From the mildest to the strictest.
VERDICTS = (ALLOW, NEED_ADDRESS, ASK, DENY)

#: The kinds of requests, as far as the broker can see, and the scheme of each.
#: "dns": a query, without a port. "http": requests in the clear. "https": requests in TLS that the broker ends.
#: "tls": TLS that passes, with a server name that agrees. "tcp": anything else, also TLS that hides its server name.
PROTOCOLS = {"dns": "", "http": "http", "https": "https", "tls": "https", "tcp": ""}

#: On these ports anything but TLS and HTTP needs a rule that names the port.
_EXPECTED = tuple(SCHEMES.values())

#: Parameters of a path's segment.
_PARAMETERS = re.compile(r";[^/]*")

#: The text of each cause of a refusal, with which errors of `fetch` begin.
CAUSES = {
    "blocked": "domain is blocked",
    "unlisted": "domain not in allowlist",
    "private": "private IP blocked",
    "port": "port not allowed",
    "scheme": "scheme not allowed",
    "method": "method not allowed",
    "path": "path not allowed",
    "unseen": "protocol not allowed",
}

#: The causes in the order of how much of a rule has matched; the last one is the most informative.
_DEPTHS = ("unlisted", "port", "scheme", "unseen", "method", "path", "private")


@dataclass(frozen=True, slots=True)
class Request:
    name: str  # as `parse_host` gives it; "" where an address itself was asked for
    address: Address | None = None  # the one to dial, once it is known
    port: int = 0  # 0 for a query
    protocol: str = "tls"  # one of PROTOCOLS
    method: str = ""  # "" while no head was read. With "http" and "https" the request is decided again with each head.
    path: str = ""  # the target of the head, as it was sent


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: str  # "allow", "deny", "ask" or "need-address"
    rule: str = ""  # the text of the rule that decided; "" if none did
    reason: str = ""  # for people; "" where the request is allowed
    cause: str = ""  # of "deny": one of CAUSES; else ""


def decide(policy: Policy, request: Request, *, granted: bool = False) -> Decision:
    """Decide by *policy* and all that it is within; *granted*: the operator has allowed what a rule of `ask` matched."""
    decision = _decide(policy, request, granted)
    within = policy.within
    while within is not None:
        other = _decide(within, request, granted)
        if VERDICTS.index(other.verdict) > VERDICTS.index(decision.verdict):
            decision = other
        within = within.within
    return decision


def rule_for(request: Request) -> str:
    """Return the rule that would allow the host and port of *request*, as it is written in the configuration."""
    host = request.name or ("*" if request.address is None else str(unmapped(request.address)))
    if ":" in host and request.port:
        host = f"[{host}]"
    return f"{host}:{request.port}" if request.port else host


def _decide(policy: Policy, request: Request, granted: bool) -> Decision:
    if request.protocol != "dns":
        refusal = _overall(policy, request)
        if refusal is not None:
            return refusal
    for rule in policy.deny:
        if rule.names_host(request.name, _plain(request)) and _is_denied(rule, request):
            return _deny("blocked", _shown(request), rule)
    furthest, about = "unlisted", _shown(request)
    for rules, verdict in ((policy.allow, ALLOW), (policy.ask, ALLOW if granted else ASK)):
        for rule in rules:
            miss = _missed(rule, request, policy)
            if not miss:
                return _with_address(policy, request, rule, verdict)
            if _DEPTHS.index(miss) > _DEPTHS.index(furthest):
                furthest, about = miss, _miss_text(miss, rule, request)
    return _deny(furthest, about)


def _overall(policy: Policy, request: Request) -> Decision | None:
    """Return the refusal of *request* by the policy's `schemes` and `methods`; None if they allow it."""
    scheme = PROTOCOLS[request.protocol]
    if policy.schemes and scheme not in policy.schemes:
        return _deny("scheme", f"{scheme or 'neither http nor https'}; these are: {', '.join(policy.schemes)}")
    if policy.methods and not _is_read(request):
        return _deny("method", f"methods of {request.protocol} can't be seen; these are: {', '.join(policy.methods)}")
    if policy.methods and request.method and request.method not in policy.methods:
        return _deny("method", f"{request.method:.40}; these are: {', '.join(policy.methods)}")
    return None


def _is_read(request: Request) -> bool:
    """Whether each request is, or will be, decided by its head."""
    return request.protocol in ("http", "https")


def _is_denied(rule: EgressRule, request: Request) -> bool:
    if request.protocol == "dns":
        return rule.is_whole and not rule.port
    if rule.port not in (0, request.port):
        return False
    scheme = PROTOCOLS[request.protocol]
    if rule.scheme and scheme and rule.scheme != scheme:
        return False
    if not (rule.methods or rule.path):
        return True
    if not _is_read(request):
        return True
    if not request.method:
        return False  # each head is decided by itself
    path = compared_path(request.path)
    # Some servers read methods in any case, and take parameters off a segment.
    return (not rule.methods or request.method.upper() in rule.methods) and (
        not rule.path or path is None or _fits(rule.path, path) or _fits(rule.path, _PARAMETERS.sub("", path)))


def _missed(rule: EgressRule, request: Request, policy: Policy) -> str:
    """The cause for which a rule of `allow` or `ask` doesn't match; "" if it does."""
    address = _plain(request)
    if rule.kind == "network" and request.name:
        return "unlisted"  # a name is allowed by its name; _with_address looks where it leads to
    if not rule.names_host(request.name, address) or (not request.name and address is None):
        return "unlisted"
    if request.protocol == "dns":
        return ""
    if not request.name and not _opens(rule, range_of(address) if address is not None else None):
        return "private"
    return _missed_beyond(rule, request, policy)


def _missed_beyond(rule: EgressRule, request: Request, policy: Policy) -> str:
    """The cause for which a rule's port, scheme, methods or path doesn't match; "" if they do."""
    ports = (rule.port,) if rule.port else (SCHEMES[rule.scheme],) if rule.scheme else policy.ports
    if request.port not in ports:
        return "port"
    scheme = PROTOCOLS[request.protocol]
    if rule.scheme and rule.scheme != scheme:
        return "scheme"
    if request.protocol == "tcp" and request.port in _EXPECTED and not rule.port:
        return "unseen"
    if (rule.methods or rule.path) and not _is_read(request):
        return "unseen"
    if not request.method:
        return ""  # the request is decided again with each head
    if rule.methods and request.method not in rule.methods:
        return "method"
    if rule.path:
        path = compared_path(request.path)
        return "" if path is not None and _fits(rule.path, path) else "path"
    return ""


def _fits(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def _opens(rule: EgressRule, found: Range | None) -> bool:
    return found is None or (rule.network is not None and opened(rule.network, found))


def _with_address(policy: Policy, request: Request, rule: EgressRule, verdict: str) -> Decision:
    """Return the decision by *rule*, which matches. A name that leads to an address of a refused range is denied."""
    address = _plain(request)
    if request.name and request.protocol != "dns":
        if address is None:
            return Decision(verdict if verdict == ASK else NEED_ADDRESS, rule.text,
                            f"{request.name} waits for approval" if verdict == ASK else "")
        found = range_of(address)
        if found is not None and not _may_lead(policy, request, address, found):
            return _deny("private", f"{request.name} leads to {address}, {found.what} ({found.network})", rule)
    return Decision(verdict, rule.text, f"{_shown(request)} waits for approval" if verdict == ASK else "")


def _may_lead(policy: Policy, request: Request, address: Address, found: Range) -> bool:
    """Whether a name may lead to *address* in the refused range *found*: `addresses` or an allowing rule opens it."""
    if any(network.version == address.version and address in network and opened(network, found)
           for network in policy.addresses):
        return True
    return any(rule.kind == "network" and rule.names_host("", address) and _opens(rule, found)
               and not _missed_beyond(rule, request, policy) for rule in policy.allow)


def _plain(request: Request) -> Address | None:
    return None if request.address is None else unmapped(request.address)


def _shown(request: Request) -> str:
    host = request.name or str(_plain(request))
    if not request.port:
        return host
    return f"[{host}]:{request.port}" if ":" in host else f"{host}:{request.port}"


def _miss_text(miss: str, rule: EgressRule, request: Request) -> str:
    if miss == "port":
        return f"{_shown(request)}, by the rule {rule.text!r} other ports are"
    if miss == "scheme":
        return f"{PROTOCOLS[request.protocol] or request.protocol}, the rule {rule.text!r} is for {rule.scheme}"
    if miss == "unseen":
        return f"{request.protocol} to {_shown(request)}, the rule {rule.text!r} is for requests that can be seen"
    if miss == "method":
        return f"{request.method:.40} {_shown(request)}, the rule {rule.text!r} is for others"
    if miss == "path":
        return f"{request.path:.200} at {_shown(request)}, the rule {rule.text!r} is for others"
    found = range_of(request.address) if request.address is not None else None
    return f"{_shown(request)}" if found is None else f"{_shown(request)} is {found.what} ({found.network})"


def _deny(cause: str, about: str, rule: EgressRule | None = None) -> Decision:
    by = f", by the rule {rule.text!r}" if rule is not None and cause == "blocked" else ""
    return Decision(DENY, "" if rule is None else rule.text, f"{CAUSES[cause]}: {about}{by}", cause)
