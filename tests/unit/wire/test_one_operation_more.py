"""What a new operation of the wire costs: docs/CONTRIBUTING.md names the files, and one is added to a copy of the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

#: By file: a text that stands there once, and what comes before it.
ADDED = {
    "leeward/wire/sandbox_requests.py": {'@operation("kernel_close"': '''\
@operation("kernel_list", answers={"kernels": "array of int"})
class KernelList(SandboxRequest):
    """Ask for the numbers of the kernels of a sandbox."""

    most: int = field(fields.whole, "of these, from the first one on", default=64)


'''},
    "leeward/daemon/serving/sandboxes.py": {
        "    def close_kernel(self": '''\
    def list_kernels(self, request: wire.KernelList, entry: SandboxEntry) -> Mapping[str, Any]:
        return {"kernels": sorted(entry.sandbox.sandbox.kernels)[:request.most]}

''',
        "    wire.KernelClose: Sandboxes.close_kernel,\n": "    wire.KernelList: Sandboxes.list_kernels,\n"},
    "leeward/client/aio_sandbox.py": {"    async def processes(self)": '''\
    async def kernels(self) -> list[int]:
        """The numbers of its kernels."""
        return list((await self.ask("kernel_list", {})).ok["kernels"])

'''},
}

#: What ./dev generate makes then.
MADE = ("docs/wire.md", "leeward/clients/c/operations.h", "leeward/client/sandbox.py", "leeward/clients/node/lib/wire.d.ts",
        "leeward/clients/node/lib/wire.js")

#: In a process over the copy: the daemon decodes the request, admits it, and answers it by the handler.
USED = """
from types import SimpleNamespace as Box
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.sandbox import Sandbox
from leeward.daemon.serving.operations import HANDLERS, Operations
from leeward.wire.requests import parse_request

request = parse_request({"v": 1, "id": 1, "op": "kernel_list", "sandbox": "a" * 26, "most": 2})
entry = Box(sandbox=Box(sandbox=Box(kernels={7: 0, 3: 0, 9: 0})))
sandboxes = Box(find=lambda name: entry, find_asleep=lambda name: entry, wakes=lambda request, entry: False)
connection = Box(_flight=Box(sandboxes=sandboxes, check=lambda: print("admitted")), _share=Box(guest=False))
Operations._admit(connection, request.operation)
print(HANDLERS[type(request)](connection, request), Sandbox.kernels.__doc__ == AsyncSandbox.kernels.__doc__)
"""


@pytest.mark.thorough
@pytest.mark.needs("not-emulated")  # the tree's shim is the machine's
def test_an_operation_is_added_in_three_files(tmp_path: Path) -> None:
    """The daemon serves it, both clients of Python have it, and the page and the client for Node say so by themselves."""
    for folder in ("leeward", "packaging", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    before = texts(tmp_path)
    for name, places in ADDED.items():
        path = tmp_path / name
        for place, text in places.items():
            assert 1 == path.read_text().count(place), place
            path.write_text(path.read_text().replace(place, text + place))

    run(tmp_path, "packaging/generated.py", *MADE)
    after = texts(tmp_path)
    changed = {name for name in after if before.get(name) != after[name]}

    assert {*ADDED, *MADE} == changed
    assert len(ADDED) <= 3
    said = (ROOT / "docs" / "CONTRIBUTING.md").read_text().partition("\n## How to add an operation\n")[2]
    assert set(ADDED) <= set(re.findall(r"`([\w/]+\.py)`", said.partition("\n## ")[0]))
    assert "admitted\n{'kernels': [3, 7]} True\n" == run(tmp_path, "-c", USED)
    assert "  kernel_list: { kernels: 'array of int' },\n" in after["leeward/clients/node/lib/wire.js"]
    assert "\n### `kernel_list`\n\nAsk for the numbers of the kernels of a sandbox.\n" in after["docs/wire.md"]
    assert "| `most` | int | 64 | of these, from the first one on |\n" in after["docs/wire.md"]


def texts(root: Path) -> dict[str, str]:
    """The content of every file of text."""
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*")
            if path.is_file() and path.suffix in (".py", ".md", ".js", ".ts", ".c", ".h")}


def run(root: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True,
                          text=True, check=False, timeout=120)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout
