"""The examples of docs/frameworks.md, which the suites here run."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).resolve().parents[2] / "docs/frameworks.md").read_text()


def run(section: str, **names: Any) -> dict[str, Any]:
    """Run the Python of a section, with *names* for what it leaves to the reader; returns all names afterwards."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        done = eval(compile(block, section, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.iscoroutine(done):
            asyncio.run(done)
    assert "__builtins__" in names, f"the page has no example in {section!r}"
    return names
