"""What `leeward exec` imports: as little as it can, since its users wait for it each time. And no import goes in a circle."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from leeward_cli import full

ROOT = Path(__file__).parents[3]

#: Modules that do without typing, beside those that `leeward exec` imports, with the reason.
OTHERS = {"leeward.base.dataclass": "programs that know leeward.spec.outcome alone, such as the wire's decoders in a fuzzer"}


def words_of(program: str) -> set[str]:
    """The words that *program* prints in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def imported() -> set[str]:
    return words_of("import leeward_cli.main, leeward_cli.fast, leeward_cli.job, sys; print(*sys.modules)")


def test_exec_imports_no_typing() -> None:
    assert not {"typing", "re", "dataclasses", "inspect", "click", "leeward.base.dataclass"} & imported()


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


def test_no_file_of_the_command_line_imports_itself_by_way_of_others() -> None:
    """Also in functions and by name (`full.FILES`): what two commands need is in a file that imports neither."""
    folder = ROOT / "cli"
    modules = {".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
               for path in (folder / "leeward_cli").rglob("*.py")}
    rest = {name: {one for one in named(path) if one in modules} - {name} for name, path in modules.items()}
    rest["leeward_cli.full"] |= {f"leeward_cli.{file}" for file in full.FILES.values()}
    while ends := {name for name, imports in rest.items() if not imports & set(rest)}:
        rest = {name: imports for name, imports in rest.items() if name not in ends}

    assert {} == rest


def named(path: Path) -> set[str]:
    """The modules that *path* imports anywhere but for type checks, and what it imports of them, which may be modules."""
    found = set()
    tree = ast.parse(path.read_text())
    for part in [*tree.body, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
        for node in [part] if isinstance(part, ast.Import | ast.ImportFrom) else \
                ast.walk(part) if isinstance(part, ast.FunctionDef) else ():
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
    return found
