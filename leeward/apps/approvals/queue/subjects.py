"""
The subject of a request in normal form, which rules compare.

Trust:     none. A text becomes a subject, or BadRequest with the reason.
Why:       `./a`, `x/../a` and `a` are one file, `Example.ORG.` and `example.org` one host, `Foo_Bar` and `foo-bar` one
           package of pip. Without a normal form a rule would miss some spellings.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from leeward.errors import BadRequest, Bug
from leeward.spec.hosts import Host, InvalidHost, parse_host
from leeward.spec.unseen import is_seen

#: Characters of a path; characters of a command's arguments together; arguments; links in a path: at most.
MOST_PATH, MOST_ARGUMENT, MOST_ARGUMENTS, MOST_LINKS = 4096, 65536, 1024, 40

#: The path of the project in a sandbox.
WORKSPACE = "/workspace"

MANAGERS = ("bun", "npm", "pip", "cargo")

_BRANCH = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\]+")
_VERSION = re.compile(r"[~^]?[A-Za-z0-9][A-Za-z0-9.+!_-]{0,127}")
_NAMES = {
    "npm": re.compile(r"(?:@[A-Za-z0-9][A-Za-z0-9._~-]*/)?[A-Za-z0-9][A-Za-z0-9._~-]*"),
    "pip": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"),
    "cargo": re.compile(r"[A-Za-z][A-Za-z0-9_-]*"),
}
#: Characters with a meaning for a shell. A line with one of them isn't split into words.
_ACTIVE = frozenset(";&|<>$`(){}[]*?!#~\n\r\0")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The peer of a connection; the port is 0 if the request has none."""

    category: ClassVar = "network"
    host: Host
    port: int = 0


@dataclass(frozen=True, slots=True)
class ProjectPath:
    """A file or folder of the project."""

    category: ClassVar = "filesystem"
    path: str  # relative to the project, without `.`, `..` and links
    #: Whether it lay in a repository of the host's, or made one, when it was asked for.
    in_repository: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command."""

    category: ClassVar = "exec"
    argv: tuple[str, ...]  # its arguments, the program first; () if there is a line
    line: str = ""  # of a shell, if it isn't plain words; else ""
    cwd: str = ""  # the folder to start in, relative to the project ("": itself), or absolute elsewhere in the sandbox


@dataclass(frozen=True, slots=True)
class NamedPackage:
    """A package in its manager's normal form; the version as it was requested, "" for any."""

    category: ClassVar = "packages"
    manager: str
    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class BranchName:
    """A branch of a repository, without refs/heads/."""

    category: ClassVar = "git"
    name: str


@dataclass(frozen=True, slots=True)
class SandboxAction:
    """An action of leeward itself, one line."""

    category: ClassVar = "sandbox"
    text: str


RuleSubject = Endpoint | ProjectPath | Invocation | NamedPackage | BranchName | SandboxAction


def is_shown(subject: RuleSubject) -> bool:
    """Whether a person sees each character of *subject*. Hosts and packages have no others."""
    match subject:
        case ProjectPath(path=text) | BranchName(name=text) | SandboxAction(text=text):
            return is_seen(text)
        case Invocation(argv=argv, line=line, cwd=cwd):
            return all(map(is_seen, (*argv, line, cwd)))
    return True


def endpoint(host: str, port: int = 0) -> Endpoint:
    """The endpoint of a name or an address, in any of its forms, and a port; 0 if the request has none."""
    try:
        found = parse_host(host)
    except InvalidHost as error:
        raise BadRequest(f"no host: {error}") from None
    if not 0 <= port <= 65535:
        raise BadRequest("a port is a number from 1 to 65535")
    return Endpoint(found, port)


def project_path(path: str, link: Callable[[str], str | None] = lambda path: None) -> ProjectPath:
    """
    *path* with `.`, `..` and links resolved beneath the project, as the kernel resolves them. BadRequest if it leads
    out of the project, is the project itself, or has more than MOST_LINKS links. *link* returns the text of the link at
    a path.
    """
    if "\0" in path or not 0 < len(path) <= MOST_PATH:
        raise BadRequest(f"a path has 1 to {MOST_PATH} characters, and no NUL among them")
    todo, done, links = list(reversed(_parts(path))), list[str](), 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not done:
                raise BadRequest("a path that leads out of the project")
            done.pop()
            continue
        text = link("/".join([*done, part]))
        if text is None:
            done.append(part)
            continue
        links += 1
        if links > MOST_LINKS or len(text) > MOST_PATH:
            raise BadRequest("a path whose links have no end")
        todo.extend(reversed(_parts(text)))
    if not done:
        raise BadRequest("a path that is the project itself")
    return ProjectPath("/".join(done))


def _parts(path: str) -> list[str]:
    if path.startswith("/"):
        raise BadRequest("a path that leads out of the project: an absolute one")
    return path.split("/")


def starting_folder(text: str) -> str:
    """
    The folder in which a command starts, as `Invocation.cwd`, of a path relative to WORKSPACE or absolute ("":
    WORKSPACE).
    """
    if len(text) > MOST_PATH or not text.isprintable():
        raise BadRequest("a folder to start in is a path that can be shown")
    # `..` is resolved in the text, without links; the command starts in the folder that was decided about.
    path = "/" + posixpath.normpath(posixpath.join(WORKSPACE, text)).lstrip("/")
    return path[len(WORKSPACE) + 1:] if f"{path}/".startswith(f"{WORKSPACE}/") else path


def invocation(command: str | Sequence[str], cwd: str = "") -> Invocation:
    """
    The subject of a command in a folder of `starting_folder`. A line of plain words becomes these words, any other
    stays a line.
    """
    folder = starting_folder(cwd)
    if isinstance(command, str):
        if not command.strip() or len(command) > MOST_ARGUMENT or "\0" in command:
            raise BadRequest(f"a command has 1 to {MOST_ARGUMENT} characters, and no NUL among them")
        words = plain_words(command)
        return Invocation((), command, folder) if words is None else Invocation(words, "", folder)
    argv = tuple(command)
    if not argv or not argv[0] or len(argv) > MOST_ARGUMENTS:
        raise BadRequest(f"a command has 1 to {MOST_ARGUMENTS} arguments, the program first")
    if sum(map(len, argv)) > MOST_ARGUMENT or any("\0" in argument for argument in argv):
        raise BadRequest(f"arguments have {MOST_ARGUMENT} characters together at most, and no NUL among them")
    return Invocation(argv, "", folder)


def plain_words(line: str) -> tuple[str, ...] | None:
    """The words of *line*, if every shell reads the line as exactly these words; else None."""
    words, word, quote, started = list[str](), "", "", False
    for letter in line:
        if quote == "'":
            if letter == "'":
                quote = ""
            elif letter in "\n\r\0":
                return None
            else:
                word += letter
        elif quote == '"':
            if letter == '"':
                quote = ""
            elif letter in "$`\\!\n\r\0":
                return None
            else:
                word += letter
        elif letter in "'\"":
            quote, started = letter, True
        elif letter in " \t":
            if started:
                words.append(word)
            word, started = "", False
        elif letter in _ACTIVE or letter == "\\" or not (letter.isprintable() or letter > "\x7f"):
            return None
        else:
            word, started = word + letter, True
    if quote:
        return None
    if started:
        words.append(word)
    if not words or not words[0] or _ASSIGNMENT.match(words[0]):
        return None
    return tuple(words)


def package(manager: str, name: str, version: str = "") -> NamedPackage:
    """The subject of a package; BadRequest if the manager isn't known, or has no such names or versions."""
    if manager not in MANAGERS:
        raise BadRequest(f"no manager of packages that is known; these are: {', '.join(MANAGERS)}")
    form = _NAMES["npm" if manager == "bun" else manager]
    if len(name) > 214 or not form.fullmatch(name):
        raise BadRequest(f"{manager} has no package of such a name")
    if version and not _VERSION.fullmatch(version):
        raise BadRequest("a version is letters, digits and . + ! _ - alone, after ^ or ~ at most")
    return NamedPackage(manager, package_form(manager, name), version)


def package_form(manager: str, name: str) -> str:
    """*name*, or a pattern of names, in the manager's normal form."""
    if manager == "pip":
        return re.sub(r"[-_.]+", "-", name).lower()
    return name.replace("_", "-").lower() if manager == "cargo" else name


def branch(name: str) -> BranchName:
    """
    The subject of a branch, with or without refs/heads/; BadRequest if git would refuse the name, or read it as another
    thing.
    """
    name = name.removeprefix("refs/heads/")
    if (not _BRANCH.fullmatch(name) or len(name) > 255 or ".." in name or "@{" in name or name == "@"
            or name.startswith(("-", "refs/")) or name.endswith("/") or posixpath.normpath(name) != name
            or any(part.startswith(".") or part.endswith((".lock", ".")) or not part for part in name.split("/"))):
        raise BadRequest("this isn't a valid name of a branch")
    return BranchName(name)


def sandbox_action(text: str) -> SandboxAction:
    """The subject of an action of leeward itself: one line of 1 to MOST_PATH characters that can be shown."""
    if not 0 < len(text) <= MOST_PATH or not text.isprintable():
        raise BadRequest(f"an action is one line of 1 to {MOST_PATH} characters that can be shown")
    return SandboxAction(text)


# --- as text and for JSON ---------------------------------------------------------------


def storable(text: str) -> str:
    """*text* with its surrogates escaped; a name whose bytes aren't UTF-8 has some."""
    return text.encode("utf-8", "backslashreplace").decode()


def subject_text(subject: RuleSubject) -> str:
    """*subject* as JSON in ASCII; equal texts are equal subjects."""
    match subject:
        case Endpoint(host=host, port=port):
            said: list[Any] = [host.text, port]
        case ProjectPath(path=text, in_repository=True):
            said = [text, True]
        case ProjectPath(path=text) | BranchName(name=text) | SandboxAction(text=text):
            said = [text]
        case Invocation(argv=argv, line=line, cwd=cwd):
            said = [list(argv), line, *([cwd] if cwd else [])]
        case NamedPackage(manager=manager, name=name, version=version):
            said = [manager, name, version]
    return json.dumps([subject.category, *said])


def subject_of(text: str) -> RuleSubject:
    """The subject that `subject_text` has written."""
    match json.loads(text):
        case ["network", str(host), int(port)]:
            return Endpoint(parse_host(host), port)
        case ["filesystem", str(path)]:
            return ProjectPath(path)
        case ["filesystem", str(path), True]:
            return ProjectPath(path, True)
        case ["exec", list(argv), str(line)]:
            return Invocation(tuple(argv), line)
        case ["exec", list(argv), str(line), str(cwd)]:
            return Invocation(tuple(argv), line, cwd)
        case ["packages", str(manager), str(name), str(version)]:
            return NamedPackage(manager, name, version)
        case ["git", str(name)]:
            return BranchName(name)
        case ["sandbox", str(action)]:
            return SandboxAction(action)
    raise Bug(f"a subject that subject_text hasn't written: {text:.100}")


def subject_row(subject: RuleSubject) -> dict[str, Any]:
    """The fields of a subject."""
    match subject:
        case Endpoint(host=host, port=port):
            return {"host": host.text, "port": port}
        case ProjectPath(path=path):
            return {"path": storable(path)}
        case Invocation(argv=argv, line=line, cwd=cwd):
            said = {"line": storable(line)} if line else {"argv": [storable(argument) for argument in argv]}
            return {**said, "cwd": storable(cwd)}
        case NamedPackage(manager=manager, name=name, version=version):
            return {"manager": manager, "name": name, "version": version}
        case BranchName(name=name):
            return {"branch": name}
        case SandboxAction(text=text):
            return {"action": text}
    raise AssertionError("a subject has one of six kinds")


def subject_title(subject: RuleSubject) -> str:
    """A subject as one line for people."""
    match subject:
        case Endpoint(host=host, port=port):
            return (f"[{host.text}]" if ":" in host.text else host.text) + (f":{port}" if port else "")
        case ProjectPath(path=text) | BranchName(name=text) | SandboxAction(text=text):
            return storable(text)
        case Invocation(argv=argv, line=line):
            return storable(line) if line else " ".join(map(_quoted, argv))
        case NamedPackage(manager=manager, name=name, version=version):
            return f"{manager} {name}" + (f"@{version}" if version else "")
    raise AssertionError("a subject has one of six kinds")


def _quoted(argument: str) -> str:
    # Arguments with blanks are quoted, so that a person sees where each one ends.
    plain = argument and not any(letter.isspace() or letter in "'\"\\" for letter in argument)
    return storable(argument) if plain else json.dumps(argument, ensure_ascii=False)
