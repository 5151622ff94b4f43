"""
Patterns of rules: a parser and a matcher for each category.

Stands if: a subject was written to look like another. Patterns are compared with the normal forms of `subjects`.
In doubt:  a pattern that denies is matched widely, one that allows narrowly. `.env*` denies such a name at any depth
           and everything below it, and allows such a name only in the project's own folder. One that denies matches a
           command if it matches one of its spellings: `sudo -u x git push` has the spellings `x git push` and
           `git push`, since it isn't known which options of a program take a value.
Leaves:    what isn't in the arguments: aliases that git's settings have, scripts, links to a program under another name,
           a line of a shell that isn't plain words; and global options of other programs than git.
Source:    git(1), as of git 2.54
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from leeward.apps.approvals.queue.subjects import (
    MANAGERS,
    WORKSPACE,
    BranchName,
    Endpoint,
    Invocation,
    NamedPackage,
    ProjectPath,
    RuleSubject,
    SandboxAction,
    package_form,
    plain_words,
    starting_folder,
)
from leeward.errors import BadRequest
from leeward.spec.hosts import Host, InvalidHost, is_below, parse_host, split_port
from leeward.spec.unseen import is_seen

#: Characters of a pattern, and stars in it, at most.
MOST_PATTERN, MOST_STARS = 4096, 16

#: Characters that a star of an argument doesn't match: a shell, or a program that calls one, gives them a meaning.
_LOUD = frozenset(";&|<>$`(){}[]*?!#~\"'\\")

Matcher = Callable[[RuleSubject, bool], bool]


@dataclass(frozen=True, slots=True)
class CompiledPattern:
    """A parsed pattern."""

    text: str  # in normal form: equal patterns have equal texts
    matches: Matcher  # whether the pattern matches a subject; the second argument is True to match widely
    everything: bool  # whether it matches every subject of its category, or all that any pattern can match


def compile_pattern(category: str, text: str) -> CompiledPattern:
    """Parse a pattern of a category; "*" is everything. BadRequest says why it is none."""
    text = text.strip()
    if not text or len(text) > MOST_PATTERN:
        raise BadRequest(f"a pattern has 1 to {MOST_PATTERN} characters")
    if not is_seen(text):
        raise BadRequest("a pattern has no characters that can't be seen")
    if text.count("*") > MOST_STARS:
        raise BadRequest(f"a pattern has {MOST_STARS} stars at most")
    if not text.strip("*"):
        return CompiledPattern("*", lambda subject, wide: True, True)
    return READERS[category](text)


def starred(text: str) -> list[str]:
    """The pieces of *text* between its stars; several stars in succession are one."""
    pieces = text.split("*")
    return [piece for place, piece in enumerate(pieces) if piece or place in (0, len(pieces) - 1)]


def fits(pieces: Sequence[str], text: str, barred: Collection[str] = ()) -> bool:
    """
    Whether *text* consists of *pieces* of `starred` in this order with any characters between them but *barred* ones.
    Each piece takes linear time and its first place, so the result may be False where another division would fit.
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
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
    return not barred or not any(letter in barred for gap in gaps for letter in gap)


def _network(text: str) -> CompiledPattern:
    try:
        host, port = split_port(text)
        if host == "*":
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
    # A request without a port may be for any port.
    return isinstance(subject, Endpoint) and (port in (0, subject.port) or (wide and not subject.port))


def _is_at(subject: RuleSubject, host: Host, below: bool, port: int, wide: bool) -> bool:
    if not isinstance(subject, Endpoint) or not _is_port(subject, port, wide):
        return False
    return subject.host == host or (below and is_below(subject.host.name, host.name))


def glob(pattern: str) -> Callable[[Sequence[str]], bool]:
    """
    A matcher of a path's segments: `*` matches within a segment; `**` as a whole segment matches any number of
    segments, and at the end at least one.
    """
    parts = pattern.split("/")
    pieces = [None if part == "**" else starred(part) for part in parts]

    def matches(segments: Sequence[str]) -> bool:
        # The numbers of segments that the parts so far can match.
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

    def matches(subject: RuleSubject, wide: bool) -> bool:
        parts = subject.name.split("/") if isinstance(subject, BranchName) else []
        return any(matcher(parts[:end]) for end in range(1 if wide else len(parts), len(parts) + 1) if parts)
    return CompiledPattern(name, matches, False)


def _sandbox(text: str) -> CompiledPattern:
    pieces = starred(text)
    return CompiledPattern(text, lambda subject, wide: isinstance(subject, SandboxAction)
                           and fits(pieces, subject.text), False)


#: Managers whose packages are the same.
_ONE_REGISTRY = frozenset(("npm", "bun"))


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
    # `*` doesn't match the slash after a scope, since the scope is the package's owner.
    names = {each: starred(package_form(each, name)) for each in MANAGERS}
    number = starred(version) if version else None

    def matches(subject: RuleSubject, wide: bool) -> bool:
        if not isinstance(subject, NamedPackage) or not (manager in ("*", subject.manager)
                                                         or (wide and {manager, subject.manager} <= _ONE_REGISTRY)):
            return False
        if not fits(names[subject.manager], subject.name, "" if wide else "/"):
            return False
        # A request without a version may be for any version.
        return number is None or (wide and not subject.version) or fits(number, subject.version)

    shown = name if manager == "*" else package_form(manager, name)
    return CompiledPattern(f"{manager}:{shown}" + (f"@{version}" if version else ""), matches,
                           manager == "*" and not name.strip("*") and not version)


#: A word of a pattern, as the pieces between its stars.
_Token = list[str]

#: The word `**`.
_REST: _Token = ["", "", ""]

#: The prefix of the folder in a rule about commands.
_CWD = "cwd="


def command_pattern(words: Sequence[str], folder: str) -> str:
    """A pattern of exec from its words, which the caller has quoted, and the pattern of a folder ("": the project itself)."""
    first = "\\" * words[0].startswith(_CWD) + words[0]  # so that a program `cwd=...` isn't read as a folder
    return " ".join([*([f"{_CWD}{folder}"] if folder else []), first, *words[1:]])


def _folder(token: _Token) -> tuple[str, Callable[[str, bool], bool]]:
    """
    The pattern of a folder in normal form, "" for the project itself, and its matcher; the second argument is as in
    Matcher.
    """
    if any("*" in piece for piece in token):
        raise BadRequest("a folder whose name has a star")
    text = "*".join(token)[len(_CWD):]
    if not text:
        raise BadRequest(f"a folder is missing after {_CWD}")
    if text == "**":
        return text, lambda cwd, wide: True
    shown = starting_folder(text)
    matcher = glob(_segments(shown))

    def matches(cwd: str, wide: bool) -> bool:
        segments = _segments(cwd).split("/")
        return any(matcher(segments[:end]) for end in (range(1, len(segments) + 1) if wide else (len(segments),)))
    return shown, matches


def _segments(folder: str) -> str:
    return posixpath.join(WORKSPACE, folder).strip("/")


def _exec(text: str) -> CompiledPattern:
    tokens = _tokens(text)
    # Without a folder a rule allows commands that start in the project itself, or denies them in any folder.
    folder, in_folder = _folder(tokens.pop(0)) if text.startswith(_CWD) else ("", lambda cwd, wide: wide or not cwd)
    if not tokens:
        raise BadRequest("a command begins with its program")
    rest = tokens[-1] == _REST
    if any(token == _REST for token in tokens[:-1]):
        raise BadRequest("`**` stands for the arguments that follow, so it stands last")
    fixed = tokens[:-1] if rest else tokens

    def matches(subject: RuleSubject, wide: bool) -> bool:
        if not isinstance(subject, Invocation) or not subject.argv:
            return False  # a line of a shell, whose commands aren't known
        if not in_folder(subject.cwd, wide):
            return False
        if wide:
            found = spellings(subject.argv)
            return found is None or any(map(fits_words, found))
        return fits_words(subject.argv, _LOUD)

    def fits_words(argv: Sequence[str], barred: Collection[str] = ()) -> bool:
        if len(argv) < len(fixed) or (len(argv) > len(fixed) and not rest):
            return False
        return (all(fits(token, argument, barred) for token, argument in zip(fixed, argv, strict=False))
                and all(fits(("", ""), argument, barred) for argument in argv[len(fixed):]))

    # A pattern whose program is stars alone counts as everything, whatever the arguments are.
    shown = command_pattern([_quoted(token) for token in tokens], re.sub(r"([\\'\" ])", r"\\\1", folder))
    return CompiledPattern(shown, matches, not "".join(tokens[0]))


def _tokens(text: str) -> list[_Token]:
    """Split a pattern of exec into words, with quotes and backslashes; a star that isn't quoted separates pieces."""
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
        elif letter == "\\":
            escaped = started = True
        elif letter in "'\"":
            quote, started = letter, True
        elif letter == " ":
            if started:
                found.append(token)
            token, started = [""], False
        else:
            started = True
            if letter == "*":
                token.append("")
            else:
                token[-1] += letter
    if quote or escaped:
        raise BadRequest("a quote or a backslash at the end that isn't closed")
    if started:
        found.append(token)
    if not found or found[0] == [""]:
        raise BadRequest("a command begins with its program")
    return found


def _quoted(token: _Token) -> str:
    if token == [""]:
        return "''"
    return "*".join(quoted_piece(piece) for piece in token)


def quoted_piece(piece: str) -> str:
    """*piece* quoted, so that in a pattern it matches exactly these characters."""
    return re.sub(r"([\\'\"* ])", r"\\\1", piece)


READERS: dict[str, Callable[[str], CompiledPattern]] = {
    "network": _network, "filesystem": _filesystem, "git": _git, "packages": _packages, "sandbox": _sandbox,
    "exec": _exec,
}


#: Programs that execute the rest of their arguments as a command.
_RUNNERS = frozenset((
    "env", "command", "exec", "builtin", "nohup", "setsid", "nice", "ionice", "chrt", "taskset", "timeout", "time",
    "stdbuf", "unbuffer", "sudo", "doas", "runuser", "setpriv", "unshare", "nsenter", "prlimit", "busybox", "xargs",
    "chroot", "flock", "script", "strace", "ltrace", "watch", "eatmydata", "fakeroot", "systemd-run", "direnv", "mise",
    "eval", "find", "parallel", "sem", "su", "pkexec", "toybox", "setarch", "linux32", "linux64", "start-stop-daemon",
    "perf", "valgrind", "gdb", "rlwrap", "faketime", "firejail", "bwrap", "proot", "torsocks", "proxychains", "entr",
    "cgexec", "numactl", "chpst", "hyperfine", "tmux", "screen", "ssh", "ssh-agent", "dbus-run-session", "xvfb-run",
    "uv", "uvx", "npm", "npx", "pnpm", "yarn", "bunx", "poetry", "pdm", "pipenv", "hatch", "conda", "bundle", "nix",
    "nix-shell", "devbox", "asdf", "chronic", "ts", "cpulimit", "trickle", "tini", "dumb-init", "catatonit", "gosu",
    "su-exec", "setuidgid", "softlimit", "envdir", "runcon", "sg", "capsh", "ld.so", "rr", "heaptrack", "lldb", "gdbserver",
    "watchexec", "nodemon", "bun", "deno", "pixi", "rye", "pipx", "rbenv", "pyenv", "nodenv", "fnm", "volta", "dotenv", "op",
    "foreman", "leeward", "catchsegv", "bpftrace", "expect", "choom", "coresched", "uclampset", "pasta", "slirp4netns",
))

#: Programs that run a line after -c.
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "rbash", "yash", "posh", "oksh", "lksh",
                     "csh", "tcsh", "elvish", "nu", "xonsh", "osh", "pwsh"))

#: Commands of git that run the rest of their arguments, or a line in them.
_RUNNING = frozenset(("submodule", "rebase", "bisect", "filter-branch", "shell"))

#: Options of git before its command whose value is the next argument.
_WITH_VALUE = frozenset(("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env",
                         "--attr-source"))

#: Options of git whose value is a text, and no command.
_TEXTS = frozenset(("-m", "--message", "--trailer", "--author", "--grep", "-S", "-G", "--format", "--pretty"))

#: Spellings of one command, at most.
MOST = 2048


def spellings(argv: Sequence[str]) -> set[tuple[str, ...]] | None:
    """*argv*, and what else can be written for it; None if that is more than MOST."""
    waiting, known = [tuple(argv)], set[tuple[str, ...]]()
    while waiting:
        found = waiting.pop()
        if found and found[0] and found not in known:
            if len(known) >= MOST:
                return None
            known.add(found)
            waiting += _others(found)
    return known


def _others(argv: tuple[str, ...]) -> list[tuple[str, ...]]:
    program, rest = posixpath.basename(argv[0]), argv[1:]
    if program != argv[0]:
        return [(program, *rest)]
    if program == "git" and not (rest and rest[0] in _RUNNING):
        return _others_of_git(rest)
    if program.startswith("git-"):
        return [("git", program.removeprefix("git-"), *rest)]
    if program in _RUNNERS or program == "git" or program.startswith("ld-"):
        # A word may have a line: `env -S 'git push'`, `script -c 'git push'`; with options of `env` at its beginning.
        return [*(rest[at:] for at in range(len(rest))),
                *(line for each in rest if " " in each for text in _values(each) for line in _in_line(text))]
    if program in _SHELLS:
        return [tuple(dropwhile(lambda word: "=" in word, words[1:])) for each in rest  # `A=b git push`
                if (words := plain_words(f"env {each}"))]
    return []


def _values(word: str) -> tuple[str, ...]:
    """*word*, and if it is an option, what may be its value: `--exec=git push`, `-xgit push`."""
    return (word, word.partition("=")[2], word[2:]) if word.startswith("-") else (word,)


def _in_line(text: str) -> list[tuple[str, ...]]:
    words = plain_words(text) or ()
    return [words[at:] for at in range(len(words))]


def _others_of_git(rest: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The command alone; for each option the line that may be its value; and what an alias of `-c` stands for."""
    command = _without_globals(rest)
    found = [("git", *command)]
    for option, following in zip(rest, (*rest[1:], ""), strict=False):
        if not option.startswith("-") or option.partition("=")[0] in _TEXTS:
            continue
        for text in (*_values(option)[1:], following, following.partition("=")[2]):
            found += _in_line(text.removeprefix("!"))
        if following.lower().startswith("alias."):
            found.append(("git", *(plain_words(following.partition("=")[2]) or ()), *command[1:]))
    if command[:1] == ("for-each-repo",):
        found += [("git", *command[at:]) for at in range(1, len(command))]
    return found


def _without_globals(rest: tuple[str, ...]) -> tuple[str, ...]:
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        at += 2 if rest[at] in _WITH_VALUE else 1
    return rest[at:]
