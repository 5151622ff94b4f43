"""
Brings names and patterns of files, as clients write them, into the form that the rest of leeward uses.

Trust:     none. Every function here takes time in proportion to a text's length and to `most`.
"""

from __future__ import annotations

#: The folder that all of a job's files are in.
WORKSPACE = "/workspace"
#: What the braces of all patterns of one request may stand for together, at most.
MOST_ALTERNATIVES = 256


def below_workspace(name: str) -> str:
    """*name* relative to /workspace: without `/workspace/` or `./` in front. /workspace itself is "."."""
    if name in (WORKSPACE, WORKSPACE + "/", ".", "./"):
        return "."
    name = name.removeprefix(WORKSPACE + "/")
    return name.removeprefix("./")


def alternatives(pattern: str, most: int = MOST_ALTERNATIVES) -> list[str]:
    """
    Expand `{a,b}`: "x.{png,csv}" is "x.png" and "x.csv"; ValueError if it stands for more than *most*. Braces without a
    comma stand for themselves, and so do those that stand alone in brackets: "[{]".
    """
    if "{" not in pattern:
        return [pattern]
    done: dict[str, None] = {}
    todo = [pattern]
    while todo:
        text = todo.pop()
        group = _first_group(text)
        if group is None:
            done[text] = None
        else:
            start, *commas, end = group
            parts = [text[after + 1:before] for after, before in zip((start, *commas), (*commas, end), strict=True)]
            todo += [text[:start] + part + text[end + 1:] for part in reversed(parts)]
        if len(done) + len(todo) > most:
            raise ValueError(f"braces stand for more than {most} patterns")
    return list(done)


def _first_group(text: str) -> list[int] | None:
    """Where the first braces that end have their opening, their commas and their end; None if no braces have a comma."""
    open_braces: list[list[int]] = []
    for at, letter in enumerate(text):
        if letter not in "{,}" or (0 < at < len(text) - 1 and text[at - 1] == "[" and text[at + 1] == "]"):
            continue
        if letter == "{":
            open_braces.append([at])
        elif open_braces and letter == ",":
            open_braces[-1].append(at)
        elif open_braces:
            group = open_braces.pop()
            if len(group) > 1:
                return [*group, at]
    return None
