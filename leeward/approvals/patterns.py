"""
Patterns of rules: one reading and one matcher for each category.

Runs in:   the operator's program; pure.
Stands if: a subject was made to look like another. Patterns see the normal forms of `subjects`, never a text.
In doubt:  a rule that denies is read widely, one that allows narrowly: `.env*` as a denial is such a name at any depth
           and everything below it, as an allowance it is one of the project's own folder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from leeward.approvals.subjects import (
    MANAGERS,
    WORKSPACE,
    BranchName,
    Endpoint,
    Invocation,
    NamedPackage,
    ProjectPath,
    RuleSubject,
    SandboxAction,
    starting_folder,
)
from leeward.errors import BadRequest
from leeward.spec.hosts import Host, InvalidHost, is_below, parse_host, split_port

#: Characters of a pattern, and stars in it, at most.
MOST_PATTERN, MOST_STARS = 4096, 16

#: What a star of an argument doesn't stand for: a shell acts on it, or a program that calls one.
_LOUD = frozenset(";&|<>$`(){}[]*?!#~\"'\\")

Matcher = Callable[[RuleSubject, bool], bool]


@dataclass(frozen=True, slots=True)
class CompiledPattern:
    """
    A pattern that was read.

    Attributes:
        text: in normal form, so that two patterns that are written in two ways and are one have one text.
        matches: whether it matches a subject, read widely or not.
        everything: it matches every subject of its category, or all that any pattern can.
    """

    text: str
    matches: Matcher
    everything: bool


def compile_pattern(category: str, text: str) -> CompiledPattern:
    """
    Args:
        category: a key of READERS.
        text: the pattern; "*" is everything.

    Raises:
        BadRequest: none that this category has. The message says why.
    """
    text = text.strip()
    if not text or len(text) > MOST_PATTERN:
        raise BadRequest(f"a pattern has 1 to {MOST_PATTERN} characters")
    if not text.isprintable():
        raise BadRequest("a pattern has no characters that can't be seen")
    if text.count("*") > MOST_STARS:
        raise BadRequest(f"a pattern has {MOST_STARS} stars at most")
    if not text.strip("*"):
        return CompiledPattern("*", lambda subject, wide: True, True)
    return READERS[category](text)


def _nothing(letter: str) -> bool:
    return False


def _is_slash(letter: str) -> bool:
    return "/" == letter


def _is_loud(letter: str) -> bool:
    return letter in _LOUD or not letter.isprintable()


def starred(text: str) -> list[str]:
    """
    The pieces of *text* between its stars; several in succession are one.
    """
    pieces = text.split("*")
    return [piece for place, piece in enumerate(pieces) if piece or place in (0, len(pieces) - 1)]


def fits(pieces: Sequence[str], text: str, barred: Callable[[str], bool] = _nothing) -> bool:
    """
    Whether *text* is *pieces* with something between them, in a time that no text can make long.

    Args:
        pieces: one is the text itself.
        text: of a stranger.
        barred: characters that stand in no gap. Each piece is taken at its first place, so where pieces have such
            characters themselves it may say no to a text that another division would fit.
    """
    first, last = pieces[0], pieces[-1]
    if 1 == len(pieces):
        return text == first
    at, end = len(first), len(text) - len(last)
    if end < at or not text.startswith(first) or not text.endswith(last):
        return False
    gaps = []
    for piece in pieces[1:-1]:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        gaps.append(text[at:found])
        at = found + len(piece)
    gaps.append(text[at:end])
    return barred is _nothing or not any(barred(letter) for gap in gaps for letter in gap)


def _network(text: str) -> CompiledPattern:
    try:
        host, port = split_port(text)
        if "*" == host:
            return CompiledPattern(f"*:{port}", lambda subject, wide: _is_port(subject, port, wide), False)
        below = host.startswith("*.")
        parsed = parse_host(host[2:] if below else host)
    except InvalidHost as error:
        raise BadRequest(f"no host: {error}") from None
    if below and parsed.address is not None:
        raise BadRequest("an address has no sub-domains")
    shown = f"*.{parsed.name}" if below else f"[{parsed.text}]" if ":" in parsed.text else parsed.text
    return CompiledPattern(f"{shown}:{port}" if port else shown,
                           lambda subject, wide: _is_at(subject, parsed, below, port, wide), False)


def _is_port(subject: RuleSubject, port: int, wide: bool) -> bool:
    # A request that names no port may be for any.
    return isinstance(subject, Endpoint) and (port in (0, subject.port) or (wide and not subject.port))


def _is_at(subject: RuleSubject, host: Host, below: bool, port: int, wide: bool) -> bool:
    if not isinstance(subject, Endpoint) or not _is_port(subject, port, wide):
        return False
    return subject.host == host or (below and is_below(subject.host.name, host.name))


def glob(pattern: str) -> Callable[[Sequence[str]], bool]:
    """
    A matcher of a path's segments: `*` is of one segment, `**` as a whole segment is any number of segments, and at the
    end at least one.
    """
    parts = pattern.split("/")
    pieces = [None if "**" == part else starred(part) for part in parts]

    def matches(segments: Sequence[str]) -> bool:
        # Which numbers of segments the parts so far can stand for.
        reached = {0}
        for place, part in enumerate(pieces):
            if part is None:
                more = 1 if place == len(pieces) - 1 else 0
                reached = set(range(min(reached) + more, len(segments) + 1))
            else:
                reached = {count + 1 for count in reached if count < len(segments) and fits(part, segments[count])}
            if not reached:
                return False
        return len(segments) in reached
    return matches


def _filesystem(text: str) -> CompiledPattern:
    parts = [part for part in text.removeprefix("/").split("/") if part != "."]
    if not parts or any(part in ("", "..") for part in parts):
        raise BadRequest("a path of the project, without `..` and empty segments")
    anchored = text.startswith(("/", "./")) or len(parts) > 1
    plain = "/".join(parts)
    narrow, wide_one = glob(plain), glob(plain if anchored else f"**/{plain}")

    def matches(subject: RuleSubject, wide: bool) -> bool:
        if not isinstance(subject, ProjectPath):
            return False
        segments = subject.path.split("/")
        if not wide:
            return narrow(segments)
        return any(wide_one(segments[:end]) for end in range(1, len(segments) + 1))
    return CompiledPattern(f"/{plain}" if anchored else plain, matches, False)


def _git(text: str) -> CompiledPattern:
    name = text.removeprefix("refs/heads/")
    matcher = glob(name)
    return CompiledPattern(name, lambda subject, wide: isinstance(subject, BranchName)
                           and matcher(subject.name.split("/")), False)


def _sandbox(text: str) -> CompiledPattern:
    pieces = starred(text)
    return CompiledPattern(text, lambda subject, wide: isinstance(subject, SandboxAction)
                           and fits(pieces, subject.text), False)


def _packages(text: str) -> CompiledPattern:
    manager, colon, rest = text.partition(":")
    if not colon or not rest or " " in text:
        raise BadRequest("written as manager:name or manager:name@version")
    if not manager.strip("*"):
        manager = "*"
    elif manager not in MANAGERS:
        raise BadRequest(f"no manager of packages that is known; these are: {', '.join(MANAGERS)}")
    at = rest.find("@", 1)
    name, version = (rest, "") if at < 0 else (rest[:at], rest[at + 1:])
    if at >= 0 and not version:
        raise BadRequest("a version is missing after the @")
    if not version.strip("*"):
        version = ""
    name = re.sub(r"\*+", "*", name)
    # `*` is of one segment here as well, since a scope says whose a package is.
    names = {each: starred(_package_form(each, name)) for each in MANAGERS}
    number = starred(version) if version else None

    def matches(subject: RuleSubject, wide: bool) -> bool:
        if not isinstance(subject, NamedPackage) or manager not in ("*", subject.manager):
            return False
        if not fits(names[subject.manager], subject.name, _is_slash):
            return False
        # A request without a version may be for any.
        return number is None or (wide and not subject.version) or fits(number, subject.version)

    shown = name if "*" == manager else _package_form(manager, name)
    return CompiledPattern(f"{manager}:{shown}" + (f"@{version}" if version else ""), matches,
                           "*" == manager and not name.strip("*") and not version)


def _package_form(manager: str, name: str) -> str:
    if "pip" == manager:
        return re.sub(r"[-_.]+", "-", name).lower()
    return name.replace("_", "-").lower() if "cargo" == manager else name


#: A token is the pieces between its stars.
_Token = list[str]

#: Two stars and nothing else.
_REST: _Token = ["", "", ""]

#: What stands before the folder of a command's rule.
_CWD = "cwd="


def command_pattern(words: Sequence[str], folder: str) -> str:
    """
    A pattern of exec from its words, each quoted where that is wanted, and the pattern of a folder; "" for the project
    itself.
    """
    first = "\\" * words[0].startswith(_CWD) + words[0]  # a program of such a name
    return " ".join([*([f"{_CWD}{folder}"] if folder else []), first, *words[1:]])


def _folder(token: _Token) -> tuple[str, Callable[[str, bool], bool]]:
    """
    The pattern of a folder in normal form, "" for the project itself, and whether a folder fits it, read widely or not.
    """
    if any("*" in piece for piece in token):
        raise BadRequest("a folder whose name has a star")
    text = "*".join(token)[len(_CWD):]
    if not text:
        raise BadRequest(f"a folder is missing after {_CWD}")
    if "**" == text:
        return text, lambda cwd, wide: True
    shown = starting_folder(text)
    matcher = glob(_segments(shown))

    def matches(cwd: str, wide: bool) -> bool:
        segments = _segments(cwd).split("/")
        return any(matcher(segments[:end]) for end in (range(1, len(segments) + 1) if wide else (len(segments),)))
    return shown, matches


def _at_top(cwd: str, wide: bool) -> bool:
    return wide or not cwd


def _segments(folder: str) -> str:
    return posixpath.join(WORKSPACE, folder).strip("/")


def _exec(text: str) -> CompiledPattern:
    tokens = _tokens(text)
    # Without a folder an allowance is one of commands that start in the project itself, and a denial one everywhere.
    folder, in_folder = "", cast("Callable[[str, bool], bool]", _at_top)
    if text.startswith(_CWD):
        folder, in_folder = _folder(tokens.pop(0))
        if not tokens:
            raise BadRequest("a command begins with its program")
    rest = _REST == tokens[-1]
    if any(_REST == token for token in tokens[:-1]):
        raise BadRequest("`**` stands for the arguments that follow, so it stands last")
    fixed = tokens[:-1] if rest else tokens

    def matches(subject: RuleSubject, wide: bool) -> bool:
        if not isinstance(subject, Invocation) or not subject.argv:
            return False  # of a shell's line nobody knows what it runs
        if not in_folder(subject.cwd, wide):
            return False
        argv, barred = subject.argv, _nothing if wide else _is_loud
        if len(argv) < len(fixed) or (len(argv) > len(fixed) and not rest):
            return False
        return (all(fits(token, argument, barred) for token, argument in zip(fixed, argv, strict=False))
                and all(fits(("", ""), argument, barred) for argument in argv[len(fixed):]))

    # A program that isn't named is any program, whatever its arguments look like.
    shown = command_pattern([_quoted(token) for token in tokens], re.sub(r"([\\'\" ])", r"\\\1", folder))
    return CompiledPattern(shown, matches, not "".join(tokens[0]))


def _tokens(text: str) -> list[_Token]:
    """
    Words with quotes and backslashes, in which a star that isn't quoted stands for other characters.
    """
    found, token, quote, escaped, started = list[_Token](), [""], "", False, False
    for letter in text:
        if escaped:
            token[-1] += letter
            escaped = False
        elif quote:
            if letter == quote:
                quote = ""
            else:
                token[-1] += letter
        elif "\\" == letter:
            escaped = started = True
        elif letter in "'\"":
            quote, started = letter, True
        elif " " == letter:
            if started:
                found.append(token)
            token, started = [""], False
        else:
            started = True
            if "*" == letter:
                token.append("")
            else:
                token[-1] += letter
    if quote or escaped:
        raise BadRequest("a quote or a backslash at the end that isn't closed")
    if started:
        found.append(token)
    if not found or [""] == found[0]:
        raise BadRequest("a command begins with its program")
    return found


def _quoted(token: _Token) -> str:
    if [""] == token:
        return "''"
    return "*".join(quoted_piece(piece) for piece in token)


def quoted_piece(piece: str) -> str:
    """
    *piece* as a pattern has it that means these characters.
    """
    return re.sub(r"([\\'\"* ])", r"\\\1", piece)


READERS: dict[str, Callable[[str], CompiledPattern]] = {
    "network": _network, "filesystem": _filesystem, "git": _git, "packages": _packages, "sandbox": _sandbox,
    "exec": _exec,
}
