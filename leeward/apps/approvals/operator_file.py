"""
The operator's configuration of approvals: rules that nothing overrules, hosts that are allowed without a request, and
how the operator is told of requests.

Files:     approvals.toml in $XDG_CONFIG_HOME/leeward. No route changes the file, so no stored rule and no approved
           proposal overrules it.
Holds:     an error in the file stops the start, since without a part of the rules more would be allowed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leeward.apps.approvals.notifying import POLICY, NotifySettings, parse_notify
from leeward.apps.approvals.queue.rules import MOST_RULES, ApprovalRule, parse_rule
from leeward.base.user_folders import user_folder
from leeward.errors import BadRequest, reason_of
from leeward.spec.hosts import Host, InvalidHost, parse_host
from leeward.spec.writers import trusted_content

FILE = "approvals.toml"

#: Bytes of the file, at most.
MOST_BYTES = 1 << 20

_KEYS = ("forbidden", "endpoints", "notify", "notify_egress")


@dataclass(frozen=True, slots=True)
class OperatorPolicy:
    """The content of the file: rules that deny, hosts that are allowed, each with all its sub-domains, and `notify`."""

    forbidden: tuple[ApprovalRule, ...] = ()
    endpoints: tuple[Host, ...] = ()
    notify: NotifySettings | None = None


def default_file(environ: Mapping[str, str]) -> str:
    """The path of the file, by XDG_CONFIG_HOME and HOME."""
    return user_folder(environ, "CONFIG", "leeward", FILE)


def operator_policy(path: str | None, environ: Mapping[str, str]) -> OperatorPolicy:
    """
    Read the file *path* (None: the default one, which needn't exist). BadRequest says why it can't be used: it can't be
    read, another user can write to it, or its content is wrong.
    """
    named = path or default_file(environ)
    try:
        return parse_policy(trusted_content(named, MOST_BYTES, os.geteuid()))
    except FileNotFoundError:
        if path is None:
            return OperatorPolicy()
        raise BadRequest(f"{named}: there is no such file") from None
    except OSError as error:
        raise BadRequest(f"{named}: {reason_of(error)}") from None
    except BadRequest as error:
        raise BadRequest(f"{named}: {error}") from None


def parse_policy(content: bytes) -> OperatorPolicy:
    """
    Parse the file: TOML with `forbidden`, an array of rules as `category(pattern)`; `endpoints`, an array of hosts;
    `notify` and `notify_egress`, as `parse_notify` has them.
    """
    try:
        said = tomllib.loads(content.decode("utf-8"))
    except RecursionError:
        raise BadRequest("no TOML: it has too many tables or arrays within each other") from None
    except ValueError as error:
        raise BadRequest(f"no TOML: {error!s:.200}") from None
    unknown = sorted(set(said) - set(_KEYS))
    if unknown:
        raise BadRequest(f"no such keys: {', '.join(map(repr, unknown))[:200]}; these are: {', '.join(_KEYS)}")
    forbidden, endpoints = list[ApprovalRule](), list[Host]()
    for text in _texts(said, "forbidden"):
        try:
            forbidden.append(parse_rule(text, "deny"))
        except BadRequest as error:
            raise BadRequest(f"forbidden: {text!r:.200}: {error}") from None
    for text in _texts(said, "endpoints"):
        try:
            endpoints.append(parse_host(text))
        except InvalidHost as error:
            raise BadRequest(f"endpoints: {text!r:.200}: {error}") from None
    notify = parse_notify(said["notify"], said.get("notify_egress", POLICY)) if "notify" in said else None
    return OperatorPolicy(tuple(forbidden), tuple(endpoints), notify)


def _texts(said: Mapping[str, Any], key: str) -> list[str]:
    found = said.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadRequest(f"{key} is an array of texts")
    if len(found) > MOST_RULES:
        raise BadRequest(f"{key} has more than {MOST_RULES} entries")
    return found
