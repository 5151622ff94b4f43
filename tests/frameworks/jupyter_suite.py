"""
Kernels in sandboxes under the tests that Jupyter has for any kernel, a notebook with a plot by nbclient, and what a
sandbox changes. Run by test_frameworks.py, with an environment `jupyter` of the daemon's.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupyter_kernel_test
import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from jupyter_core.utils import run_sync
from nbclient import NotebookClient

import leeward
from leeward.apps.integrations import jupyter

PATIENCE_S = 60
SPECS = tempfile.TemporaryDirectory(prefix="leeward-kernels-")
os.environ["JUPYTER_PATH"] = f"{SPECS.name}/share/jupyter"
os.environ["LEEWARD_TEST_SECRET"] = "of the host"
for name, options in (("leeward", ["environment=jupyter", "memory=1G"]), ("bare", []),
                      ("folder", ["environment=jupyter", "memory=1G", "workdir=."])):
    jupyter.main(["--name", name, "--prefix", SPECS.name, *options])


class TestKernel(jupyter_kernel_test.KernelTests):
    kernel_name = "leeward"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = ({"text": "zi", "matches": {"zip"}},)
    complete_code_samples = ("1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n")
    incomplete_code_samples = ("print('''hello", "def f(x):\n  x*2")
    invalid_code_samples = ("import = 7q",)
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('test')"
    code_execute_result = ({"code": "1+2+3", "result": "6"}, {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"})
    code_display_data = ({"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))",
                          "mime": "text/html"},
                         {"code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))",
                          "mime": "text/latex"})
    supported_history_operations = ("tail", "range", "search")
    code_history_pattern = "1?2*"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    def history_helper(self, execute_first: list[str], timeout: int = PATIENCE_S, **histargs: Any) -> dict[str, Any]:
        """ipykernel by itself, outside as well, gives rows of a range the number 0 for this session, where they want 1."""
        reply: dict[str, Any] = super().history_helper(execute_first, timeout, **histargs)
        if "range" == histargs["hist_access_type"]:
            content = reply["content"]
            assert {0} == {row[0] for row in content["history"]}
            content["history"] = [[histargs["session"], *row[1:]] for row in content["history"]]
        return reply


@pytest.fixture(scope="module")
def kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    manager, client = start_new_kernel(kernel_name="leeward", startup_timeout=PATIENCE_S)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def said(client: BlockingKernelClient, code: str) -> str:
    """What the code prints, or the name of its exception."""
    texts: list[str] = []

    def take(message: dict[str, object]) -> None:
        content = message["content"]
        assert isinstance(content, dict)
        texts.append(content.get("text", "") + content.get("ename", ""))

    client.execute_interactive(code, timeout=PATIENCE_S, output_hook=take)
    return "".join(texts).strip()


def test_a_notebook_with_a_plot(tmp_path: Path) -> None:
    cells = ["import matplotlib.pyplot as plot\nplot.plot([1, 3, 2]); plot.show()", "6 * 7", "open('kept', 'w').write('x')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])

    NotebookClient(notebook, kernel_name="folder", timeout=PATIENCE_S,
                   resources={"metadata": {"path": str(tmp_path)}}).execute()

    assert "image/png" in notebook.cells[0].outputs[-1].data
    assert "42" == notebook.cells[1].outputs[0].data["text/plain"]
    assert "x" == (tmp_path / "kept").read_text()  # its `workdir` is the notebook's folder


def test_a_kernel_has_nothing_of_the_host(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    manager, client = kernel

    assert "None" == said(client, "import os; print(os.environ.get('LEEWARD_TEST_SECRET'))")
    assert "OSError" == said(client, "import socket; socket.create_connection(('192.0.2.1', 80), 5)")
    folder = Path(manager.ip).parent
    assert (0o700, os.geteuid()) == (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid)
    assert 5 == len(list(folder.iterdir()))


def test_an_interrupt_keeps_the_state(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    manager, client = kernel
    said(client, "kept = 42")

    def interrupt(message: dict[str, object]) -> None:
        content = message["content"]
        assert isinstance(content, dict)
        if "begun" in content.get("text", ""):
            manager.interrupt_kernel()
        ended.append(content.get("ename", ""))

    ended: list[str] = []
    client.execute_interactive("print('begun', flush=True)\nwhile True: pass", timeout=PATIENCE_S, output_hook=interrupt)
    assert "KeyboardInterrupt" == "".join(ended)
    assert "42" == said(client, "print(kept)")


def test_a_restart_keeps_files_and_no_state(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    manager, client = kernel
    said(client, "lost = 1; open('kept', 'w').write('x')")

    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=PATIENCE_S)

    assert "NameError" == said(client, "lost")
    assert "x" == said(client, "print(open('kept').read())")


def test_a_sandbox_that_ends_is_a_kernel_that_died(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    manager, client = kernel
    assert manager.is_alive()

    leeward.Sandbox.attach(leeward.Sandbox.list()[-1]["sandbox"]).close()
    run_sync(manager.provisioner.wait)()  # until that was seen

    assert not manager.is_alive()
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=PATIENCE_S)
    assert "42" == said(client, "print(6 * 7)")


def test_a_kernel_that_ends_at_once_says_why() -> None:
    before = len(leeward.Sandbox.list())

    with pytest.raises(RuntimeError, match="No module named ipykernel"):
        KernelManager(kernel_name="bare").start_kernel()

    assert before == len(leeward.Sandbox.list())


def test_options_are_looked_at_when_a_kernelspec_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("memory", "memroy=1G"):
        with pytest.raises(SystemExit):
            jupyter.main(["--prefix", SPECS.name, wrong])
    assert "memroy" in capsys.readouterr().err
