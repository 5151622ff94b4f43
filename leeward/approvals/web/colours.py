"""
Syntax highlighting for a diff: comments, strings, numbers and keywords, in linear time.

Runs in:   the operator's program that decides; pure.
Trust:     none in the text. A hostile text makes regular expressions that backtrack slow, which would block the whole
           program; see decision 0086. A mistake here gives only a wrong colour.
"""

from __future__ import annotations

import posixpath
import re

#: Characters of a text that is highlighted, at most.
MOST_COLOURED = 400_000

_HASH = ("py", "sh", "bash", "zsh", "toml", "yaml", "yml", "rb", "pl", "cfg", "ini", "conf", "nix", "r", "jl", "mk",
         "dockerfile", "makefile", "gitignore", "env", "tf")
_SLASHES = ("js", "mjs", "cjs", "ts", "tsx", "jsx", "c", "h", "cc", "cpp", "hpp", "rs", "go", "java", "kt", "swift",
            "cs", "php", "scala", "css", "scss", "zig", "dart")
_DASHES = ("sql", "lua", "hs", "elm")
_OTHERS = ("json", "html", "xml", "svg")

#: Keywords of several languages together.
_WORDS = frozenset(re.split(" ", (
    "abstract and as assert async await begin bool break case catch char class const continue def default defer del "
    "delete do done double elif else end enum esac except export extends extern False false fi final finally float fn "
    "for from func function global go if impl import in inline instanceof int interface is lambda let local long loop "
    "match mod module mut namespace new nil None nonlocal not null or package pass private protected pub public raise "
    "return self short signed sizeof static struct super switch template then this throw trait True true try type "
    "typedef typeof undefined union unsafe unsigned use using var void volatile where while with yield "
    "SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE DROP JOIN ON AND OR NOT NULL INTO VALUES SET")))

#: With possessive quantifiers, so that no character is matched twice.
_TOKEN = re.compile(r"""
    (?P<string>"(?:[^"\\\n]|\\.)*+"?+|'(?:[^'\\\n]|\\.)*+'?+|`(?:[^`\\\n]|\\.)*+`?+)
    | (?P<word>[^\W\d]\w*+)
    | (?P<number>\d[\w.]*+)
    | (?P<other>[^\w"'`\n]|\n)
""", re.VERBOSE)

Colours = list[list[tuple[str, str]]]


def comments_of(path: str) -> tuple[str, str, str] | None:
    """The mark of a comment up to the end of the line, and the marks around a longer one; None for an unknown language."""
    name = posixpath.basename(path).lower()
    kind = name.rpartition(".")[2]
    if kind in _HASH:
        return ("#", '"""', '"""') if kind == "py" else ("#", "", "")
    if kind in _SLASHES:
        return ("", "/*", "*/") if kind == "css" else ("//", "/*", "*/")
    if kind in _DASHES:
        return "--", "", ""
    if kind in _OTHERS:
        return ("", "", "") if kind == "json" else ("", "<!--", "-->")
    return None


def coloured(text: str, path: str) -> Colours | None:
    """
    The lines of *text*, each as pieces with their colours: "c" for a comment, "s" a string, "k" a keyword, "n" a
    number, "" other text. None for an unknown language, or more than MOST_COLOURED characters.
    """
    marks = comments_of(path)
    if marks is None or len(text) > MOST_COLOURED:
        return None
    lines: Colours = [[]]
    at, (line, begin, end) = 0, marks
    begun, of = 0, ""  # the start and colour of a run, which is copied as a whole
    while at < len(text):
        if begin and text.startswith(begin, at):
            stop = text.find(end, at + len(begin))
            stop = len(text) if stop < 0 else stop + len(end)
            kind = "s" if begin == '"""' else "c"
        elif line and text.startswith(line, at):
            stop = text.find("\n", at)
            stop, kind = len(text) if stop < 0 else stop, "c"
        else:
            token = _TOKEN.match(text, at)
            stop, kind = (at + 1, "") if token is None else (token.end(), _kind(token))
        if kind != of:
            _add(lines, text[begun:at], of)
            begun, of = at, kind
        at = stop
    _add(lines, text[begun:], of)
    return lines


def _kind(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "string":
            return "s"
        case "number":
            return "n"
        case "word" if token[0] in _WORDS:
            return "k"
    return ""


def _add(lines: Colours, text: str, kind: str) -> None:
    first, *others = text.split("\n")
    for number, piece in enumerate((first, *others)):
        if number:
            lines.append([])
        if piece:
            lines[-1].append((piece, kind))
