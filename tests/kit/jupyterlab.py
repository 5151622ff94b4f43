"""A notebook that JupyterLab runs in a browser, with a kernel in a sandbox."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from kit.approvals_browser import chromium
from kit.features import ROOT
from kit.loopback import free_port
from kit.waiting import poll_until

#: Seconds for each step.
_PATIENCE = 300
PYTHON = ROOT / ".venv-framework-jupyter/bin/python"


def _answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as asking:
        return 0 == asking.connect_ex(("127.0.0.1", port))


def shown(folder: Path, env: Mapping[str, str], kernel: str, *options: str) -> None:
    """Run a notebook with this kernel, in a server of these options: what it shows is of a sandbox."""
    code = "import os\nprint('the host' if os.path.exists('/etc/shadow') else 'a sandbox', 6 * 7)"
    cell: dict[str, object] = {"cell_type": "code", "source": code, "metadata": {}, "outputs": [], "execution_count": None,
                               "id": "one"}
    (folder / "plain.ipynb").write_text(json.dumps({
        "nbformat": 4, "nbformat_minor": 5, "cells": [cell],
        "metadata": {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}}))
    port = free_port()
    server = subprocess.Popen(
        [PYTHON, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
         "--IdentityProvider.token=known", f"--ServerApp.root_dir={folder}", *options],
        env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        poll_until(lambda: _answers(port), "JupyterLab answers", _PATIENCE)
        with chromium() as browser:
            page = browser.new_page()
            page.set_default_timeout(1000 * _PATIENCE)
            page.goto(f"http://127.0.0.1:{port}/lab/tree/plain.ipynb?token=known")
            page.get_by_text("| Idle").wait_for()  # else it asks for a kernel
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            page.locator(".jp-OutputArea-output").get_by_text("a sandbox 42").wait_for()
    finally:
        server.terminate()
        server.wait(_PATIENCE)
