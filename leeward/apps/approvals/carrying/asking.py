"""
Parses requests: fields of JSON become a NewRequest for the queue, or one typed error.

Trust:     none. This module checks the type of each field, and the modules it calls check the form. The sender's own
           metadata is under "said" of the request's; everything else in the metadata comes from this module. Of a
           command for packages it writes the manager, the verb and the flags anew, and passes on only names and
           versions in the form that the manager prescribes.
Leaves:    the effects of a package's install script, which runs in the sandbox of the command.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leeward.apps.approvals.carrying.apply import Project, in_project
from leeward.apps.approvals.carrying.orders import (
    EXEC_S,
    CommandOrder,
    ConfigOrder,
    command_order,
    delete_order,
    edit_order,
    file_request,
    pack_order,
    write_order,
)
from leeward.apps.approvals.carrying.settings import check_setting
from leeward.apps.approvals.queue.approval_request import NewRequest
from leeward.apps.approvals.queue.subjects import NamedPackage, branch, endpoint, invocation, package, sandbox_action
from leeward.errors import BadRequest
from leeward.spec.unseen import LONG_BLANK, blanked_lines, is_hidden, mixed_words

#: Fields that any request may have beside its own.
COMMON = ("category", "description", "reason", "asker", "metadata")

#: Those that a request of a category, or of an action about a file, may have.
OWN: Mapping[str, tuple[str, ...]] = {
    "network": ("host", "port"), "exec": ("command", "cwd", "timeout", "profile"), "git": ("branch",),
    "sandbox": ("action",), "write": ("action", "path", "content", "content_base64", "mode"),
    "edit": ("action", "path", "old", "old_base64", "new", "new_base64"), "delete": ("action", "path"),
}


def text_field(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """The value of a field that has to be a text; BadRequest for a surrogate that stands for no byte, too."""
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise BadRequest(f"{name} is a text")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise BadRequest(f"{name} isn't valid Unicode") from None
    return value


def bytes_field(fields: Mapping[str, Any], name: str) -> bytes:
    """The bytes of a field: those of the text NAME, or those that NAME_base64 encodes."""
    if f"{name}_base64" in fields:
        try:
            return base64.b64decode(text_field(fields, f"{name}_base64"), validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f"{name}_base64 isn't base64") from None
    return os.fsencode(text_field(fields, name))


def parse_request(fields: Mapping[str, Any], project: Project | None, sandbox: str = "") -> NewRequest:
    """
    The request that *fields* of a JSON object, which aren't trusted, describe; BadRequest if none, EditError if an
    edit's text isn't there once. Paths are relative to *project*; *sandbox* is "" for the operator.
    """
    category = text_field(fields, "category")
    said = fields.get("metadata", {})
    if not isinstance(said, Mapping):
        raise BadRequest("metadata is an object")
    common: dict[str, Any] = {name: text_field(fields, name, "") for name in ("description", "reason", "asker")}
    if category not in ("network", "filesystem", "exec", "git", "sandbox"):
        raise BadRequest("category: one of network, filesystem, exec, git, sandbox; packages have a route of their own")
    make = _file if category == "filesystem" else _other
    new = make(fields, project, sandbox, common)
    return replace(new, metadata={**new.metadata, **({"said": dict(said)} if said else {})},
                   project="" if project is None else project.path)


def _other(fields: Mapping[str, Any], project: Project | None, sandbox: str, common: Mapping[str, Any]) -> NewRequest:
    category = text_field(fields, "category")
    _only(fields, category)
    if category == "network":
        port = fields.get("port", 0)
        if type(port) is not int:
            raise BadRequest("a port is a number")
        return NewRequest(endpoint(text_field(fields, "host"), port), "connect", sandbox=sandbox, **common)
    if category == "exec":
        order = command_order(fields.get("command", ""), cwd=text_field(fields, "cwd", ""),
                              timeout=fields.get("timeout", EXEC_S), profile=text_field(fields, "profile", ""))
        return replace(command_request(order, sandbox=sandbox), **common)
    if category == "git":
        return NewRequest(branch(text_field(fields, "branch")), "push", sandbox=sandbox, **common)
    return NewRequest(sandbox_action(text_field(fields, "action")), "ask", sandbox=sandbox, **common)


def _only(fields: Mapping[str, Any], kind: str) -> None:
    more = sorted(set(map(str, fields)) - {*COMMON, *OWN[kind]})
    if more:
        raise BadRequest(f"no such fields of this request: {', '.join(more)[:200]}")


def _file(fields: Mapping[str, Any], project: Project | None, sandbox: str, common: Mapping[str, Any]) -> NewRequest:
    if project is None:
        raise BadRequest("this sandbox works on no project, so there is no file to ask for")
    action = text_field(fields, "action")
    path = project.resolve(text_field(fields, "path")).path
    base, before = project.content(path)
    if action not in ("write", "edit", "delete"):
        raise BadRequest("an action about a file is one of: write, edit, delete")
    _only(fields, action)
    if action == "write":
        mode = fields.get("mode")
        if mode is not None and (type(mode) is not int or not 0 <= mode <= 0o777):
            raise BadRequest("a mode is a number, of permission bits alone")
        order = write_order(path, base, bytes_field(fields, "content"), mode)
    elif action == "edit":
        order = edit_order(path, base, before, bytes_field(fields, "old"), bytes_field(fields, "new"))
    else:
        order = delete_order(path, base)
    return in_project(file_request(order, before=before, sandbox=sandbox,
                                   in_repository=project.in_repository(path), **common), project)


def command_request(order: CommandOrder, *, reason: str = "", sandbox: str = "", asker: str = "",
                    description: str = "", project: str = "") -> NewRequest:
    """The request for a command, with remarks on what a person could overlook in it."""
    remarks = []
    shown = order.line or " ".join(order.argv)
    if any(map(is_hidden, shown)):
        remarks.append("the command has characters that can't be seen")
    if mixed_words(shown):
        remarks.append("a word has letters of another alphabet that look like Latin ones")
    if blanked_lines(shown):
        remarks.append(f"it goes on behind {LONG_BLANK} blanks or more")
    if order.line:
        remarks.append("it is a line for a shell: more than its words may be run")
    metadata = {"remarks": remarks, "cwd": order.cwd, "timeout": order.timeout, "profile": order.profile}
    return NewRequest(order.subject, "run", description, reason, metadata, sandbox, asker, pack_order(order), project)


def package_requests(command: str | Sequence[str], *, timeout: float = EXEC_S, reason: str = "", sandbox: str = "",
                     asker: str = "", project: str = "") -> list[NewRequest]:
    """
    A request for each package of *command*. Each is decided and carried out by itself, by the manager's command written
    anew for that package alone. BadRequest as of `parse_packages`.
    """
    found = parse_packages(command)
    count, requests = len(found.packages), []
    words, specs = found.argv[:-count], found.argv[-count:]
    for named, spec in zip(found.packages, specs, strict=True):
        order = command_order((*words, spec), timeout=timeout)
        remarks = [f"left out: {word}" for word in found.dropped]
        metadata = {"remarks": remarks, "command": list(order.argv), "timeout": timeout}
        requests.append(NewRequest(named, found.action, " ".join(order.argv), reason, metadata, sandbox, asker,
                                   pack_order(order), project))
    return requests


def config_request(key: str, value: Any, *, reason: str = "", sandbox: str = "", asker: str = "",
                   project: str = "") -> NewRequest:
    """The request to set a key of the configuration; BadRequest if there is no such key, or the value isn't one of it."""
    found = check_setting(key, value)
    return NewRequest(sandbox_action(f"set {key} = {json.dumps(found)}"), "configure", "", reason, {"key": key},
                      sandbox, asker, pack_order(ConfigOrder(key, found)), project)


#: By manager and by each of its words for adding and removing: the action, and the words that are written for it.
_VERBS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "bun": {"add": ("add", ("add",)), "install": ("add", ("add",)), "i": ("add", ("add",)),
            "remove": ("remove", ("remove",)), "uninstall": ("remove", ("remove",))},
    "npm": {"add": ("add", ("install",)), "install": ("add", ("install",)), "i": ("add", ("install",)),
            "remove": ("remove", ("uninstall",)), "uninstall": ("remove", ("uninstall",))},
    "pip": {"install": ("add", ("install",)), "uninstall": ("remove", ("uninstall", "--yes"))},
    "cargo": {"add": ("add", ("add",)), "install": ("add", ("install",)), "remove": ("remove", ("remove",)),
              "uninstall": ("remove", ("uninstall",))},
}

#: The flags that are let through, with their meanings.
_MEANINGS = {"-D": "dev", "--dev": "dev", "--save-dev": "dev", "-E": "exact", "--exact": "exact",
             "--save-exact": "exact", "-g": "global", "--global": "global", "--save": "save"}

#: The flag for a meaning, by manager and verb. A flag that the manager doesn't have is left out, with a remark.
_FLAGS: dict[tuple[str, str], dict[str, str]] = {
    ("bun", "add"): {"dev": "--dev", "exact": "--exact", "global": "--global"},
    ("bun", "remove"): {"global": "--global"},
    ("npm", "install"): {"dev": "--save-dev", "exact": "--save-exact", "global": "--global", "save": "--save"},
    ("npm", "uninstall"): {"dev": "--save-dev", "global": "--global", "save": "--save"},
    ("cargo", "add"): {"dev": "--dev"},
    ("cargo", "remove"): {"dev": "--dev"},
}

#: Flags without a value that change only what is printed. They are left out, with a remark.
_QUIET = frozenset(("-q", "--quiet", "--silent", "-s", "--verbose", "-v", "--no-fund", "--no-audit", "--no-progress",
                    "-y", "--yes", "--no-input", "--color", "--no-color"))

#: Packages of one command, at most.
MOST_PACKAGES = 50


@dataclass(frozen=True, slots=True)
class PackageOrder:
    """A command for packages."""

    action: str  # "add" or "remove"
    packages: tuple[NamedPackage, ...]
    argv: tuple[str, ...]  # the command, written anew
    dropped: tuple[str, ...] = ()  # the flags that were left out


def parse_packages(command: str | Sequence[str]) -> PackageOrder:
    """
    Parse a command for packages, a line of plain words or arguments. BadRequest says which part isn't let through: an
    unknown manager or flag, no package, or a name that isn't of a registry's package (a path, a URL, an alias).
    """
    argv = invocation(command).argv
    if not argv:
        raise BadRequest("a command for packages is plain words, without anything that a shell acts on")
    manager = "pip" if argv[0] == "pip3" else argv[0]
    if manager not in _VERBS:
        raise BadRequest(f"no manager of packages that is known; these are: {', '.join(_VERBS)}")
    if len(argv) < 2 or argv[1] not in _VERBS[manager]:
        raise BadRequest(f"{manager} is followed by one of: {', '.join(_VERBS[manager])}")
    action, words = _VERBS[manager][argv[1]]
    flags, names, specs, dropped = list[str](), list[NamedPackage](), list[str](), list[str]()
    known = _FLAGS.get((manager, words[0]), {})
    for word in argv[2:]:
        if not word.startswith("-"):
            names.append(_package(manager, action, word))
            # Cargo takes a name only as it was registered, with - or with _.
            specs.append(word if manager == "cargo" else _spec(names[-1]))
        elif word in _MEANINGS and (flag := known.get(_MEANINGS[word])) is not None:
            if flag not in flags:
                flags.append(flag)
        elif word in _MEANINGS or word in _QUIET:
            dropped.append(word)
        else:
            # An unknown flag may take the next word as its value, or name another registry.
            raise BadRequest(f"{word!r:.60} is no flag that is let through; these are: {', '.join(_MEANINGS)}")
    if not 0 < len(names) <= MOST_PACKAGES:
        raise BadRequest(f"a command names 1 to {MOST_PACKAGES} packages")
    return PackageOrder(action, tuple(names), (manager, *words, *flags, *specs), tuple(dropped))


def _package(manager: str, action: str, word: str) -> NamedPackage:
    mark = "==" if manager == "pip" else "@"
    at = word.find(mark, 1)
    name, version = (word, "") if at < 0 else (word[:at], word[at + len(mark):])
    if at >= 0 and not version:
        raise BadRequest(f"{word!r:.60}: a version is missing")
    if version and action == "remove":
        raise BadRequest(f"{word!r:.60}: what is removed has no version")
    try:
        return package(manager, name, version)
    except BadRequest as error:
        raise BadRequest(f"{word!r:.60}: {error}") from None


def _spec(named: NamedPackage) -> str:
    mark = "==" if named.manager == "pip" else "@"
    return f"{named.name}{mark}{named.version}" if named.version else named.name
