"""
A job without network that searches by calling a function of its client's: docs/functions.md

    python examples/functions.py

The code is what a model might have written. It sees `search` and `note`, and nothing else of this program.
"""

from __future__ import annotations

import leeward

PAGES = {
    "seccomp": "A filter for system calls.",
    "landlock": "A whitelist of files, set by the process itself.",
    "namespaces": "A view of the system of one's own.",
}

CODE = """\
import asyncio

async def main():
    found = await asyncio.gather(*(search(word) for word in ("seccomp", "landlock", "chroot")))
    for pages in found:
        for page in pages:
            note(page["title"], page["text"])
    try:
        note.wait("root", "rm -rf /")
    except PermissionError as error:
        print("refused:", error)

asyncio.run(main())
print("done")
"""

notes: list[str] = []


def search(word: str) -> list[dict[str, str]]:
    """Return the pages with *word*."""
    return [{"title": title, "text": text} for title, text in PAGES.items() if word in title]


def note(title: str, text: str) -> None:
    """Write a note. The arguments come from the job, so they are checked."""
    if title not in PAGES:
        raise PermissionError(f"no notes about {title!r:.40}")
    notes.append(f"{title}: {text}")


def main() -> None:
    with leeward.Client() as client:
        result = client.execute(CODE, functions={"search": search, "note": note}, call_timeout=10)
    print(result.text, end="")
    print("\n".join(sorted(notes)))


if __name__ == "__main__":
    main()
