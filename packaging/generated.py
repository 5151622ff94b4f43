"""
Files of the tree that programs make: `./dev generate` makes them anew, and `./dev lint` makes them again and compares.

    ./dev generate [PATH...]    those whose paths begin so; all unless told
    ./dev generate --check [PATH...]    say which aren't what would be made, and change nothing
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The function that makes a file's text, or the texts of all files of a folder by name.
WHOLE = {
    "docs/seccomp.md": "leeward.isolation.seccomp.compiler.texts:listing",
    "leeward/clients/c/command/options.h": "command_files:c_options",
    "leeward/clients/c/bounds.h": "wire_files:c_bounds",
    "leeward/clients/c/operations.h": "wire_files:c_header",
    "leeward/base/_generated_initialisers.py": "initialisers:made",
    "leeward/client/blocking.py": "blocking_client:client",
    "leeward/client/files.py": "blocking_client:files",
    "leeward/client/process.py": "blocking_client:process",
    "leeward/client/sandbox.py": "blocking_client:sandbox",
    "leeward/client/snapshot.py": "blocking_client:snapshot",
    "leeward/client/forking.py": "blocking_client:forking",
    "leeward/client/kernel_session.py": "blocking_client:kernel_session",
    "leeward/apps/host/profiles/seccomp.json": "leeward.apps.host.profiles:seccomp",
    "leeward/isolation/seccomp/programs/": "leeward.isolation.seccomp.compiler.texts:programs",
    "packaging/completions/": "command_files:completions",
    "packaging/man/": "command_files:pages",
    "leeward/clients/node/lib/wire.d.ts": "wire_files:declarations",
    "leeward/clients/node/lib/wire.js": "wire_files:script",
    "tests/conformance/frames.json": "conformance.texts:text",
}
#: The function that makes a part of a page anew, and returns the page.
PARTS = {
    "README.md": "runs_tables:readme",
    "docs/agent-command.md": "runs_tables:agents",
    "docs/approvals.md": "approvals_page:made",
    "docs/architecture.md": "draw_rooms:made",
    "docs/c-api.md": "generate_c_api:made",
    "docs/frameworks.md": "runs_tables:frameworks",
    "docs/kernel.md": "vm.table:made",
    "docs/wire.md": "wire_files:made",
    "tests/escapes/CATALOGUE.md": "kit.catalogue:made",
}

#: The first line of each whole file, by the ending of its name. JSON has no comments.
SAYS = "Made by ./dev generate"
FIRST = {".1": f'.\\" {SAYS}\n', ".json": "", ".md": f"<!-- {SAYS} -->\n\n", ".txt": f"# {SAYS}\n\n", ".js": f"// {SAYS}\n",
         ".ts": f"// {SAYS}\n", ".h": f"/* {SAYS} */\n"}


def made(beginnings: tuple[str, ...] = ("",)) -> dict[Path, str]:
    """The texts of the files whose paths in the tree begin so."""
    found = {}
    for path, maker in {**WHOLE, **PARTS}.items():
        if path.startswith(beginnings):
            module, _, name = maker.partition(":")
            texts = getattr(import_module(module), name)()
            for inner, text in ({"": texts} if isinstance(texts, str) else texts).items():
                found[ROOT / (path + inner)] = text if path in PARTS else _headed(Path(path + inner), text)
    return found


def _headed(path: Path, text: str) -> str:
    """*text* below the line that says who made it; zsh wants its own line first."""
    first, ending, rest = text.partition("\n") if text.startswith("#compdef") else ("", "", text)
    return first + ending + FIRST.get(path.suffix, f"# {SAYS}\n") + rest


def surplus(kept: Iterable[Path]) -> list[Path]:
    folders = (ROOT / path for path in WHOLE if path.endswith("/"))
    return sorted({path for folder in folders for path in folder.iterdir()} - set(kept))


def main(arguments: list[str]) -> int:
    if arguments[:1] != ["--check"]:
        for path, text in made(tuple(arguments) or ("",)).items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        if not arguments:
            for path in surplus(made()):
                path.unlink()
        return 0
    beginnings = tuple(arguments[1:])
    texts = made(beginnings or ("",))
    wrong = [*(() if beginnings else surplus(texts)),
             *(path for path, text in texts.items() if not path.is_file() or path.read_text() != text)]
    for path in wrong:
        print(f"{path.relative_to(ROOT)} isn't what ./dev generate makes", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
