"""
Parses commands that add or remove packages, and writes them anew as arguments.

Runs in:   the operator's program; pure.
Trust:     none in the command. This module writes the manager, the verb and the flags, and passes on only names and
           versions in the form that the manager prescribes.
Leaves:    the effects of a package's install script, which runs in the sandbox of the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leeward.approvals.queue.subjects import NamedPackage, invocation, package
from leeward.errors import BadRequest

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
    """
    A command for packages.

    Attributes:
        action: "add" or "remove".
        packages: each is a subject for rules.
        argv: the command, written anew.
        dropped: the flags that were left out.
    """

    action: str
    packages: tuple[NamedPackage, ...]
    argv: tuple[str, ...]
    dropped: tuple[str, ...] = ()


def parse_packages(command: str | Sequence[str]) -> PackageOrder:
    """
    Parse a command for packages.

    Args:
        command: a line of plain words, or arguments.

    Raises:
        BadRequest: the manager isn't known, no package is named, a flag isn't let through, or a name isn't that of a
            registry's package: a path, a URL, an alias. The message says which.
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
