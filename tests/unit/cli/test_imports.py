"""What `leeward exec` imports: as little as it can, since its users wait for it each time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

#: Modules that do without typing, beside those that `leeward exec` imports, with the reason.
OTHERS = {"leeward.dataclass": "programs that know leeward.outcome alone, such as the wire's decoders in a fuzzer"}


def words_of(program: str) -> set[str]:
    """The words that *program* prints in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def imported() -> set[str]:
    return words_of("import leeward_cli.main, leeward_cli.fast, leeward_cli.job, sys; print(*sys.modules)")


def test_exec_imports_no_typing() -> None:
    assert not {"typing", "re", "dataclasses", "inspect", "click", "leeward.dataclass"} & imported()


def test_a_start_copies_files_into_the_sandbox_without_what_archives_need() -> None:
    found = words_of("import leeward.client.files, sys; print(*sys.modules)")
    assert "leeward.client.file_calls" in found
    assert not {"tarfile", "secrets", "hashlib", "shutil", "decimal"} & found


def test_only_modules_that_exec_imports_do_without_typing() -> None:
    """`TYPE_CHECKING = False` is for a saving that was measured; no other module has it."""
    found = set()
    for package in (ROOT / "leeward", ROOT / "cli" / "leeward_cli"):
        for path in package.rglob("*.py"):
            if re.search("^TYPE_CHECKING = False", path.read_text(), re.MULTILINE):
                parts = path.relative_to(package.parent).with_suffix("").parts
                found.add(".".join(parts).removesuffix(".__init__"))

    assert not found - imported() - set(OTHERS)
    assert set(OTHERS) <= found
