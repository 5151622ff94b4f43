"""
Jupyter's kernels in live sandboxes: a kernel provisioner, and the kernelspecs that name it.

Runs in:   whatever starts kernels: JupyterLab's server, nbclient, papermill; needs the extra `jupyter`, and in the
           sandbox ipykernel. Jupyter finds this module by the entry point `leeward`.
Trust:     what a kernel says is as hostile as its code: a notebook's page shows it as it shows any kernel's.

    python -m leeward.apps.integrations.jupyter packages='["ipykernel", "matplotlib"]' memory=2G
    jupyter nbconvert --execute --to html --ExecutePreprocessor.kernel_name=leeward plots.ipynb

Theory of operation. A kernel listens on five ports of its sandbox's own loopback. On the host there is a Unix socket for
each in a folder that only this user can enter; Jupyter's transport `ipc` connects to these, and a thread passes the bytes
on. That thread has an event loop for all kernels of this program, since Jupyter's blocking managers turn theirs only
while they are called. A restart begins a process in the same sandbox, so files stay; if the sandbox has ended there is a
new one.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import functools
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.provisioning import KernelProvisionerBase
from traitlets import Dict

from leeward.client.aio_ports import MOST, AsyncPublished, connected
from leeward.client.aio_process import AsyncProcess
from leeward.client.aio_sandbox import AsyncSandbox
from leeward.client.loop_thread import LoopThread
from leeward.errors import LeewardError, ProcessOver, SandboxOver

T = TypeVar("T")

#: The kernel's sockets, by Jupyter's names, and their ports in the sandbox. The last one is the last that ipykernel opens.
PORTS = {"shell_port": 57571, "stdin_port": 57572, "control_port": 57573, "iopub_port": 57574, "hb_port": 57575}
#: The file in the sandbox that tells the kernel of them.
_TOLD = "/tmp/kernel.json"
#: What a kernel's sandbox has unless its kernelspec says otherwise; `workdir` is a profile with loopback.
_DEFAULTS: Mapping[str, Any] = {"profile": "workdir"}
#: Seconds in which a kernel has to listen, between two looks, and the bytes of its last words that are kept.
_PATIENCE_S, _LOOK_S, _LAST_WORDS = 60.0, 0.05, 500


class LeewardProvisioner(KernelProvisionerBase):
    """
    A kernel provisioner whose kernels run in live sandboxes. A kernel whose sandbox has ended counts as one that died.

    Attributes:
        sandbox: options of `leeward.Sandbox`. `"workdir": "."` is the folder of the notebook.
    """

    sandbox = Dict(help="options of leeward.Sandbox").tag(config=True)

    _box: AsyncSandbox | None = None
    _process: AsyncProcess | None = None
    _ended: concurrent.futures.Future[int] | None = None
    _folder = ""
    _last_words = b""

    # --- what Jupyter asks ------------------------------------------------------

    @property
    def has_process(self) -> bool:
        """Whether there is a kernel, running or not waited for yet."""
        return self._process is not None

    async def poll(self) -> int | None:
        """None while the kernel runs, then its exit code."""
        if self._ended is None:
            return 0
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int | None:
        """Wait for the kernel's end; returns its exit code."""
        if self._ended is None:
            return 0
        code = await asyncio.shield(asyncio.wrap_future(self._ended))
        self._process = None
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel, unless it has ended."""
        if self._process is not None:
            await _unless_over(self._process.signal(signum))

    async def kill(self, restart: bool = False) -> None:
        """Kill the kernel and all that it has started."""
        if self._process is not None:
            await _unless_over(self._process.kill())

    async def terminate(self, restart: bool = False) -> None:
        """Ask the kernel to end."""
        await self.send_signal(15)

    async def cleanup(self, restart: bool = False) -> None:
        """End the sandbox, but before a restart."""
        if restart:
            return
        box, self._box = self._box, None
        if box is not None:
            await _elsewhere(box.close())
        folder, self._folder = self._folder, ""
        shutil.rmtree(folder, ignore_errors=True)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Choose the names of the sockets on the host, and write them for Jupyter's clients."""
        manager, more = self.parent, kwargs.pop("extra_arguments", [])
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="leeward-kernel-")
            manager.transport, manager.ip = "ipc", f"{self._folder}/socket"
        manager.write_connection_file()
        self.connection_info = manager.get_connection_info()
        cmd = [word.replace("{connection_file}", _TOLD) for word in (*self.kernel_spec.argv, *more)]
        return await super().pre_launch(cmd=cmd, **kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Mapping[str, Any]:
        """
        Start the kernel, and return when it listens. Of the environment it gets what its kernelspec names.

        Raises:
            RuntimeError: it ended, or didn't listen within a minute.
            DaemonError: there is no sandbox for it.
        """
        env = {name: kwargs["env"][name] for name in self.kernel_spec.env}
        try:
            await _elsewhere(self._launch(cmd, env, kwargs.get("cwd") or os.getcwd()))
        except BaseException:
            self._process = None
            await self.cleanup()
            raise
        return self.connection_info

    # --- in the thread ----------------------------------------------------------

    async def _launch(self, cmd: list[str], env: Mapping[str, str], folder: str) -> None:
        box = await self._opened(folder)
        inside = {**self.connection_info, **PORTS, "transport": "tcp", "ip": "127.0.0.1",
                  "key": self.connection_info["key"].decode()}
        await box.files.write(_TOLD, json.dumps(inside))
        process = self._process = await box.start(cmd, env=env)
        self._last_words = b""
        ended = self._ended = concurrent.futures.Future()
        published: list[AsyncPublished] = []
        following = asyncio.ensure_future(self._follow(process, ended, published))
        _TASKS.add(following)
        following.add_done_callback(_TASKS.discard)
        await self._listening(box, following)
        for name, port in PORTS.items():
            published.append(AsyncPublished(box, port, _listener(f"{self._folder}/socket-{self.connection_info[name]}")))

    async def _opened(self, folder: str) -> AsyncSandbox:
        """The sandbox, a new one where there is none or where it has ended."""
        if self._box is not None:
            try:
                await self._box.info()
            except SandboxOver:
                await self._box.close()
            else:
                return self._box
        options = {**_DEFAULTS, **self.sandbox}
        if options.get("workdir") == ".":
            options["workdir"] = folder
        self._box = AsyncSandbox(held=True, **options)
        await self._box.id()
        return self._box

    async def _listening(self, box: AsyncSandbox, following: asyncio.Task[None]) -> None:
        """Wait until the kernel has opened its last port."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while not following.done():
                    there = await connected(box, PORTS["hb_port"])
                    if there is not None:
                        there.close()
                        return
                    await asyncio.wait([following], timeout=_LOOK_S)
        raise RuntimeError(f"the kernel doesn't listen; it said last: {self._last_words!r}")

    async def _follow(self, process: AsyncProcess, ended: concurrent.futures.Future[int],
                      published: list[AsyncPublished]) -> None:
        """Read what the kernel's process itself writes, until its end or the sandbox's."""
        code = 1
        try:
            async for chunk in process:
                self._last_words = (self._last_words + chunk.data)[-_LAST_WORDS:]
            result = await process.wait()
            code = 1 if result is None else result.exit_code
        except LeewardError:
            pass  # the sandbox has ended, or the daemon
        finally:
            for one in published:
                await one.close()
            ended.set_result(code)


# --- the thread -----------------------------------------------------------------

_TASKS: set[asyncio.Task[None]] = set()


@functools.cache
def _loop() -> LoopThread:
    return LoopThread("leeward-jupyter")


async def _elsewhere(what: Coroutine[Any, Any, T]) -> T:
    """The result of *what*, run in the thread; it is cancelled with the caller."""
    return await _loop().awaited(what)


async def _unless_over(what: Coroutine[Any, Any, object]) -> None:
    with contextlib.suppress(ProcessOver, SandboxOver):
        await _elsewhere(what)


def _listener(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)  # from before a restart
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(MOST)
    listener.setblocking(False)
    return listener


# --- kernelspecs ----------------------------------------------------------------

def kernelspec(title: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a kernel.json whose kernels run in sandboxes with these options."""
    AsyncSandbox(**{**_DEFAULTS, **options})  # says whether they are any
    return {"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": title,
            "language": "python",
            "metadata": {"kernel_provisioner": {"provisioner_name": "leeward", "config": {"sandbox": dict(options)}}}}


def main(argv: list[str] | None = None) -> None:
    """Install a kernelspec."""
    parser = argparse.ArgumentParser(prog="python -m leeward.apps.integrations.jupyter",
                                     description="Make a kernel for Jupyter that runs in a sandbox of leeward.")
    parser.add_argument("--name", default="leeward", help="the kernelspec's name (%(default)s)")
    parser.add_argument("--title", default="Python in a sandbox", help="what notebooks show (%(default)s)")
    parser.add_argument("--prefix", help="install below this folder, not for this user")
    parser.add_argument("option", nargs="*", help="NAME=VALUE, an option of leeward.Sandbox; VALUE is JSON or a text")
    asked = parser.parse_args(argv)
    options = {}
    for name, given, value in (each.partition("=") for each in asked.option):
        if not given:
            parser.error(f"{name!r} is not NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    try:
        made = kernelspec(asked.title, options)
    except (LeewardError, TypeError) as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(made, indent=2))
        print(KernelSpecManager().install_kernel_spec(folder, asked.name, user=asked.prefix is None,
                                                      prefix=asked.prefix))


if __name__ == "__main__":
    main()
