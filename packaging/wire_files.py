"""
What documents and other languages say of the wire, from leeward/wire/schema.py.

In docs/wire.md it is what stands between the marks: the table of all operations, and each one's table of fields. An
operation that the page hasn't gets a section. The client for Node has the types of all fields and answers, by which it
checks answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from leeward.base.dataclass import MISSING
from leeward.client import slots
from leeward.spec import folders
from leeward.spec.outcome import LeftOutReason, Limit, Outcome
from leeward.wire import bundles, fields, file_answers, file_requests, frames, replies
from leeward.wire.answers import RESULT
from leeward.wire.file_answers import FAILURE
from leeward.wire.file_requests import FileRequest
from leeward.wire.requests import OPERATIONS
from leeward.wire.schema import Field, Operation

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "wire.md"

#: They register in the order in which their modules are imported.
SORTED = sorted(OPERATIONS.values(), key=lambda one: one.name)

#: What each annotation is on the wire.
TYPES = {
    "bool": "bool", "int": "int", "str": "text", "bytes": "binary", "bytes | memoryview": "binary",
    "float": "int or float", "tuple[str, ...]": "array of text", "tuple[bytes, ...]": "array of binary",
    "tuple[Folder, ...]": "array of map", "tuple[int, int]": "array", "tuple[tuple[str, str], ...]": "array",
    "Mapping[str, str]": "map of text to text", "Mapping[str, bytes | memoryview]": "map of text to binary",
    "Mapping[str, Any]": "map", "list[Any]": "array", "object": "array",
}


def annotation(operation: Operation, name: str) -> str:
    """That of the field *name*, without None."""
    found = [vars(kind).get("__annotations__", {}).get(name) for kind in operation.kind.__mro__]
    return str(next(filter(None, found))).removesuffix(" | None")


def type_of(operation: Operation, name: str) -> str:
    """The type on the wire of the field *name*."""
    return operation.fields[name].type or TYPES[annotation(operation, name)]


def types_of(answer: Mapping[str, str | Callable[..., Any]]) -> Mapping[str, str]:
    """The fields of an answer with their types; the name of one that may be absent ends in ?."""
    return {name: kind if isinstance(kind, str) else TYPES[kind.__annotations__["return"]]
            for name, kind in answer.items()}


def default_of(one: Field) -> str:
    if one.shown is not None or one.absent is MISSING:
        return one.shown or ""
    value = one.absent
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:,g}"
    if not value:
        return "empty" if value == b"" else "none"
    return f"`{value}`"


# --- what the clients in other languages bound and know by name as Python's does -----------

BOUNDS = {
    **{name: getattr(frames, name) for name in ("VERSION", "HEADER", "MAX_REQUEST", "MAX_REPLY", "MAX_DEPTH", "MAX_ENTRIES",
                                                "MAX_VALUES", "MAX_KEY")},
    **{name: getattr(replies, name) for name in ("MAX_ARENAS", "MAX_ARENA", "MAX_LEFT_OUT")},
    "MAX_SHOWN": bundles.MAX_RESULTS, "MAX_FORM": bundles.MAX_ONE, "MAX_FORMS": bundles.MAX_TOTAL,
    "MAX_PLAIN": bundles.MAX_PLAIN, "MAX_PATTERN": file_requests.MAX_PATTERN, "MAX_EDIT": file_requests.MAX_EDIT,
    "MAX_ROWS": file_answers.MAX_ROWS, "MAX_MOUNTS": folders.MOST,
    "LARGE": slots.LARGE, "MAX_SLOTS": slots.MOST_SLOTS, "MAX_SLOT": slots.MOST_SIZE,
}


# --- the client for Node --------------------------------------------------------------

#: What each type on the wire is in TypeScript, in answers. Numbers that JavaScript's don't hold are BigInts.
TYPESCRIPT = {
    "bool": "boolean", "int": "number | bigint", "float": "number", "int or float": "number", "text": "string",
    "nil": "null", "binary": "Buffer", "place": "[number, number, number]", "map": "Record<string, any>",
    "array": "any[]",
}


def typescript(kind: str, sent: bool = False) -> str:
    """A type on the wire as one of TypeScript; *sent* in a request, which may hold other views of bytes."""
    if kind.startswith("array of "):
        inner = typescript(kind.removeprefix("array of "), sent)
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if kind.startswith("map of text to "):
        return f"Record<string, {typescript(kind.removeprefix('map of text to '), sent)}>"
    if kind not in TYPESCRIPT and " or " in kind:
        return " | ".join(typescript(one, sent) for one in kind.split(" or "))
    return "NodeJS.ArrayBufferView" if sent and kind == "binary" else TYPESCRIPT[kind]


def comment(text: str) -> str:
    return "/** " + text.replace("*/", "* /") + " */"


def declarations() -> str:
    lines = ["/// <reference types=\"node\" />", "", comment("By operation: the fields of its request."),
             "export interface Requests {"]
    for operation in SORTED:
        lines.append(f"  {operation.name}: {{")
        for name, one in operation.fields.items():
            kind = typescript(type_of(operation, name), sent=True)
            lines += [f"    {comment(one.doc)}", f"    {name}{'' if one.absent is MISSING else '?'}: {kind};"]
        lines.append("  };")
    lines += ["}", "", comment("By operation: the fields of its answer."), "export interface Answers {"]
    for operation in SORTED:
        found = "ResultFields" if operation.answers is RESULT else shape(types_of(operation.answers))
        if issubclass(operation.kind, FileRequest):
            found += " | Failure"
        lines.append(f"  {operation.name}: {found};")
    return "\n".join([*lines, "}", "", f"export type ResultFields = {shape(RESULT)};", "",
                      comment("The answer to an operation on files that failed."),
                      f"export interface Failure {shape(types_of(FAILURE))}", ""])


def shape(answer: Mapping[str, str]) -> str:
    found = "; ".join(f"{name}: {typescript(kind)}" for name, kind in answer.items())
    return f"{{ {found} }}" if found else "{}"


def script() -> str:
    lines = ["'use strict';", "",
             f"const RESULT = {types(RESULT)};", comment("The answer to an operation on files that failed."),
             f"const FAILURE = {types(types_of(FAILURE))};", "",
             comment("By operation: the fields of its answer with their types; ? is for those that may be absent."),
             "const ANSWERS = {"]
    for operation in SORTED:
        found = "RESULT" if operation.answers is RESULT else types(types_of(operation.answers))
        lines.append(f"  {operation.name}: {found},")
    bounds = ", ".join(f"{name}: {value}" for name, value in BOUNDS.items())
    forms = ", ".join(f"['{name}', {str(is_text).lower()}]" for name, is_text in bundles.IS_TEXT.items())
    return "\n".join([
        *lines, "};", "", comment("Bounds, and words of results."), f"const BOUNDS = {{ {bounds} }};",
        *(f"const {name} = new Set({list(map(str, kind))});"
          for name, kind in (("OUTCOMES", Outcome), ("LIMITS", Limit), ("REASONS", LeftOutReason))),
        comment("The MIME types of what is shown, and whether they are text."), f"const IS_TEXT = new Map([{forms}]);", "",
        "module.exports = { ANSWERS, BOUNDS, FAILURE, IS_TEXT, LIMITS, OUTCOMES, REASONS };", ""])


def types(answer: Mapping[str, str]) -> str:
    found = ", ".join(f"{repr(name) if '?' in name else name}: '{kind}'" for name, kind in answer.items())
    return f"{{ {found} }}" if found else "{}"


# --- the client in C ------------------------------------------------------------------

#: By a field's annotation: the member of a struct and its kind (`enum lw_kind`). libleeward has no other fields.
C = {
    "bool": ("bool", "LW_FLAG"), "int": ("uint64_t", "LW_WHOLE"), "float": ("double", "LW_SECONDS"),
    "str": ("struct lw_bytes", "LW_AS_TEXT"), "bytes": ("struct lw_bytes", "LW_AS_BINARY"),
    "bytes | memoryview": ("struct lw_bytes", "LW_AS_BINARY"), "tuple[str, ...]": ("struct lw_texts", "LW_TEXTS"),
    "Mapping[str, str]": ("struct lw_texts", "LW_SETTINGS"), "tuple[int, int]": ("struct lw_pair", "LW_PAIR"),
    "Mapping[str, bytes | memoryview]": ("struct lw_files", "LW_FILES"),
    "tuple[Folder, ...]": ("const struct lw_folders *", "LW_MOUNTS"),
}
LIMITS = ("struct lw_limits", "LW_LIMITS")

#: The same by the type on the wire, of answers.
C_ANSWERS = {"bool": C["bool"], "int": C["int"], "float": C["float"], "text": C["str"], "binary": C["bytes"],
             "array": ("struct lw_value", "LW_LIST"), "map": ("struct lw_value", "LW_TABLE")}

C_HEAD = '''\
/* Operations: the fields of their requests and of their answers. lw_request_write writes a request: a field that must be
 * given in any case, others if they aren't 0, false, empty or NULL. LW_READ reads an answer. */
#pragma once

#include "request.h"

'''


def c_bounds() -> str:
    """leeward/clients/c/bounds.h."""
    lines = ["/* Bounds, and words of results by their numbers. */", "#pragma once", "", "#include <stdbool.h>", "",
             '#include "leeward.h"', "", *(f"#define LW_{name} {value}" for name, value in BOUNDS.items()), ""]
    for name, kind, prefix in (("outcomes", Outcome, "LEEWARD_"), ("limits", Limit, "LEEWARD_LIMIT_")):
        lines += [f"static const char *const lw_{name}[] = {{",
                  *(f'\t[{prefix}{each.name}] = "{each}",' for each in kind), "};", ""]
    return "\n".join([*lines, "/* The first is unused. */", "static const char *const lw_reasons[] = {", '\t"",',
                      *(f'\t"{each}",' for each in LeftOutReason), "};", "",
                      "/* The MIME types of displayed forms, and whether they are text. */",
                      "static const struct lw_form {", "\tconst char *type;", "\tbool is_text;", "} lw_forms[] = {",
                      *(f'\t{{"{name}", {str(is_text).lower()}}},' for name, is_text in bundles.IS_TEXT.items()), "};", ""])


def c_header() -> str:
    """leeward/clients/c/operations.h."""
    answers = [c_struct(f"{one.name}_answer", "", [
        (name.rstrip("?"), C_ANSWERS.get(kind.split(" of ")[0], ("struct lw_value", "LW_ANYTHING")),
         "?" not in name and " or " not in kind, "")
        for name, kind in types_of(one.answers).items()])
        for one in SORTED if one.answers and (one.answers is not RESULT or one.name == "execute")]
    return C_HEAD + "\n".join([*filter(None, map(c_operation, SORTED)), *answers])


def c_operation(operation: Operation) -> str:
    """The request of an operation; "" if libleeward can't have one, or it has no fields."""
    rows = []
    for name, one in operation.fields.items():
        found = LIMITS if one.check is fields.limits else C.get(annotation(operation, name))
        if isinstance(one.absent, int) and one.absent < 0:  # 0 is a value like others
            found = "struct lw_some", "LW_SOME"
        if found is not None:
            rows.append((name, found, one.absent is MISSING, f" /* {one.doc} */"))
        elif one.absent is MISSING:
            return ""
    assert operation.kind.__doc__ is not None
    return c_struct(operation.name, f"/* {operation.kind.__doc__.strip().replace('*', '')} */\n", rows) if rows else ""


def c_struct(name: str, head: str, rows: list[tuple[str, tuple[str, str], bool, str]]) -> str:
    """A struct of fields, each with its name, member, kind, whether it must be given, and a comment; and their table."""
    lines, table = [f"{head}struct lw_{name} {{"], [f"static const struct lw_field lw_fields_{name}[] = {{"]
    for field, (member, kind), given, comment in rows:
        own = f"{field}_" if field in ("stdin", "stdout", "stderr") else field  # macros, in some libraries
        lines.append(f"\t{member}{'' if member.endswith('*') else ' '}{own};{comment}")
        table.append(f'\t{{"{field}", {kind}, {str(given).lower()}, offsetof(struct lw_{name}, {own})}},')
    return "\n".join([*lines, "};", *table, "};", ""])


# --- docs/wire.md -------------------------------------------------------------------


def table(operation: Operation) -> str:
    rows = [(f"`{name}`", type_of(operation, name), default_of(one), one.doc)
            for name, one in operation.fields.items()]
    wide = any(one.absent is not MISSING for one in operation.fields.values())
    lines = ["| field | type | default | |", "|---|---|---|---|"] if wide else ["| field | type | |", "|---|---|---|"]
    for (kind, default, doc), alike in groupby(rows, lambda row: row[1:]):
        cells = [", ".join(row[0] for row in alike), kind, *([default] if wide else []), doc]
        lines.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    return "\n".join(lines) + "\n"


def answer_text(operation: Operation) -> str:
    if operation.answers is RESULT:
        return "[a result](#execute)"
    found = ", ".join(f'"{name}": {kind}' for name, kind in types_of(operation.answers).items())
    return f"`{{{found}}}`" if len(found) < 100 else f"[a map](#{operation.name})" if found else "empty"


def overview(text: str) -> str:
    """The table of all operations, in the order in which the page *text* has them."""
    lines = ["| operation | answer | admitted | guests | since |", "|---|---|---|---|---|"]
    lines += [f"| [`{one.name}`](#{one.name}) | {answer_text(one)} | {one.admits} | {'no' if one.guests else 'yes'} |"
              f" {one.since} |" for one in sorted(OPERATIONS.values(), key=lambda one: text.index(title(one.name)))]
    return "\n".join(lines) + "\n"


def title(name: str) -> str:
    return f"\n### `{name}`\n"


def marked(name: str, text: str) -> str:
    return f"<!-- {name}: made by ./dev generate -->\n\n{text}\n<!-- end -->"


def page(text: str) -> str:
    """docs/wire.md as it should be, made from what it is; ValueError if it lacks marks."""
    for operation in OPERATIONS.values():
        if title(operation.name) not in text:
            before, behind = text.split("\n## Replies\n")
            text = f"{before}{section(operation)}\n## Replies\n{behind}"
    blocks = {"operations": overview(text), **{one.name: table(one) for one in OPERATIONS.values() if one.fields}}
    for name, block in blocks.items():
        before, mark, behind = text.partition(f"<!-- {name}: made by ")
        if not mark:
            raise ValueError(f"{PAGE}: no marks of {name}")
        text = before + marked(name, block) + behind.partition("<!-- end -->")[2]
    return text


def section(operation: Operation) -> str:
    """What there is about an operation, until somebody writes more."""
    assert operation.kind.__doc__ is not None
    said = operation.kind.__doc__.strip().replace("*", "`")
    fields = f"{marked(operation.name, '')}\n\n" if operation.fields else ""
    return f"{title(operation.name)}\n{said}\n\n{fields}The answer: {answer_text(operation)}.\n"


def made() -> str:
    return page(PAGE.read_text())
