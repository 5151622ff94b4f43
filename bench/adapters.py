"""
What an adapter of leeward/apps/integrations, or somebody's client of `leeward serve`, takes beside the client's own call of
the same thing.

    PYTHONPATH=tests .venv/bin/python bench/adapters.py [--rounds N] [--record] [NAME...]

Each runs in its framework's environment (`LEEWARD_LONG=1 ./dev test` makes them), with a daemon of this bench's own, and
what speaks HTTP with a server. In each round the client and the adapter have their turn; a figure is the median of the
rounds' differences, in milliseconds of the program's and the server's processor time, which other programs hardly move. With
a server each turn comes after a rest of 50 ms, which makes it dear; by the clock the same is measured once more in a row.
A client of `leeward serve` has a third turn, at a server that isn't leeward's: what that takes is the floor.
--record keeps it in docs/runs, for README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import textwrap
from pathlib import Path

from kit import entry_points, images, packages, runs
from kit.loopback import free_port
from kit.served import Served
from leeward_cli.bench.ours import daemon

ROOT = Path(__file__).resolve().parent.parent

LINE = '["bash", "-c", "true"]'
#: Name: its class, how an object `a` of it is made, the client's call, and the adapter's.
ROWS = {
    "langchain": ("langchain.LeewardSandbox", "b = leeward.Sandbox(); a = A(b)", 'b.shell("true")', 'a.execute("true")'),
    "pydantic-ai": ("pydantic_ai.LeewardWorkspace", "b = leeward.AsyncSandbox(); a = A(b)", f"await b.run({LINE})",
                    f"await a.run({LINE})"),
    "smolagents": ("smolagents.LeewardExecutor", "a = A()", 'a._kernel.execute("1")', 'a("1")'),
    "autogen": ("autogen.LeewardCodeExecutor",
                "from autogen_core import CancellationToken as T, code_executor as c; a = A(); await a.start()",
                'await a._box.shell("true")', 'await a.execute_code_blocks([c.CodeBlock("true", "sh")], T())'),
    "dspy": ("dspy.LeewardInterpreter", "a = A(); a.start()", 'a._kernel.execute("1")', 'a.execute("1")'),
    "inspect-ai": ("inspect_ai.LeewardSandboxEnvironment", "b = leeward.AsyncSandbox(); a = A(b)", f"await b.run({LINE})",
                   f"await a.exec({LINE})"),
    "openai-agents": ("openai_agents.LeewardSandboxClient", "s = await A().create()", f"await s._inner._box.run({LINE})",
                      f"await s._inner._exec_internal(*{LINE})"),
    "mini-swe-agent": ("mini_swe_agent.LeewardEnvironment", "a = A()", f"a._box.run({LINE})",
                       'a.execute({"command": "true"})'),
    "google-adk": ("google_adk.LeewardAdkEnvironment", "a = A(); await a.initialize()", f"await a._box.run({LINE})",
                   'await a.execute("true")'),
    "verifiers": ("verifiers.LeewardVerifiersRuntime", "a = A(); await a.start()", f"await a._box.run({LINE})",
                  f"await a.run({LINE}, {{}})"),
    "strands": ("strands.LeewardStrandsSandbox", "a = A(); b = await a._opened()", f"await b.run({LINE})",
                'await a.execute("true")'),
    "ag2": ("ag2.LeewardAg2Environment", "a = A()", f"await a._box.run({LINE})", f"await a.exec({LINE})"),
    "agent-framework": ("agent_framework.LeewardShell", "a = A()", f"await a._box.run({LINE})", 'await a.run("true")'),
    "crewai": ("crewai.ShellTool", "b = leeward.Sandbox(); a = A(b)", f"b.run({LINE})", 'a.run(command="true")'),
    "nemo-gym": ("nemo_gym.LeewardProvider", ("from nemo_gym.sandbox.providers.base import SandboxSpec as S; a = A(); "
                 "h = await a.create(S())"), f"await h.raw.box.run({LINE})", 'await a.exec(h, "true")'),
    "harbor": ("harbor.LeewardHarborEnvironment", (
        "from pathlib import Path; from harbor.models.trial.paths import TrialPaths as T; p = Path('none'); "
        "from harbor.models.task.config import EnvironmentConfig as E; "
        'a = A(p, "b", "b", T(p), E(docker_image="debian"), offline=True); await a.start(False)'),
        f"await a._opened().run({LINE})", 'await a.exec("true")'),
    # By HTTP, to SWE-ReX's server in the sandbox.
    "swe-rex": ("swe_rex.LeewardDeployment", ("from swerex.runtime.abstract import Command as C; "
                'a = A(environment="swe-rex", memory="1G"); await a.start()'), f"await a._box.run({LINE})",
                f"await a.runtime.execute(C(command={LINE}))"),
    # Beside a kernel outside of any sandbox.
    "jupyter": ("jupyter.main", ("from jupyter_client.manager import start_new_kernel as start; "
                'A(["--prefix", sys.prefix, "environment=jupyter", "memory=1G"]); '
                '(m, b), (n, a) = start(kernel_name="python3"), start(kernel_name="leeward")'),
                'b.execute_interactive("1", silent=True)', 'a.execute_interactive("1", silent=True)'),
}
#: The same of clients of `leeward serve`, and of JupyterLab: the server's words, how a client `a` of it at URL is made, the
#: client's call, theirs, and the floor: what else they would take, at a server that `begun` has started.
SERVED = {
    "client-opensandbox": ("opensandbox", """
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
b = leeward.AsyncSandbox(profile="workdir")
here = URL.partition("//")[2]
a, f = [await Sandbox.create("opensandbox/code-interpreter", connection_config=ConnectionConfig(domain=each, api_key=TOKEN))
        for each in (here, begun(sys.executable, FLOORS, "replay", PLACE, here))]
""", 'await b.shell("true")', 'await a.commands.run("true")', 'await b.shell("true"); await f.commands.run("true")'),
    "mcp": ("mcp", """
import httpx2, mcp
from mcp.client.streamable_http import streamable_http_client
b = leeward.AsyncSandbox(profile="workdir")
http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"})
a, f = [await mcp.Client(streamable_http_client(f"{each}/mcp", http_client=http)).__aenter__()
        for each in (URL, "http://" + begun(sys.executable, FLOORS, "mcp", PLACE))]
""", 'await b.shell("true")', 'await a.call_tool("run_shell", {"command": "true"})',
            'await b.shell("true"); await f.call_tool("run_shell", {"command": "true"})'),
    # A call is a kernel from its start to its end.
    "open-webui": ("jupyter", """
import types
settings = sys.modules["open_webui.env"] = types.ModuleType("open_webui.env")
settings.AIOHTTP_CLIENT_ALLOW_REDIRECTS = settings.ENABLE_ORJSON = False
from open_webui.utils.code_interpreter import execute_code_jupyter as a
async def b():
    async with leeward.AsyncSandbox(profile="workdir") as box:
        await box.execute("1")
other = "http://" + jupyter("jupyter_server")
""", "await b()", 'await a(URL, "1", TOKEN, "", 60)', 'await a(other, "1", TOKEN, "", 60)'),
    # These two beside a kernel outside of any sandbox, as above.
    "nbclient": ("jupyter --open --listen PLACE --origin http://PLACE", """
os.environ["JUPYTER_GATEWAY_URL"] = URL
import nbformat, nbclient
cells = [nbformat.v4.new_code_cell("1")]
book = nbformat.v4.new_notebook(cells=cells)
a = nbclient.NotebookClient(book, kernel_manager_class="jupyter_server.gateway.managers.GatewayKernelManager")
b = nbclient.NotebookClient(book)
f = nbclient.NotebookClient(book, kernel_manager_class="jupyter_server.gateway.managers.GatewayKernelManager")
for each in (a, b, f):
    if each is f:
        from jupyter_server.gateway.gateway_client import GatewayClient
        place = jupyter("jupyter_server")
        GatewayClient.instance().url, GatewayClient.instance().ws_url = f"http://{place}", f"ws://{place}"
    each.create_kernel_manager()
    await each.async_start_new_kernel()
    await each.async_start_new_kernel_client()
""", "await b.async_execute_cell(cells[0], 0)", "await a.async_execute_cell(cells[0], 0)",
                 "await f.async_execute_cell(cells[0], 0)"),
    "jupyterlab": ("", """
import websocket
from leeward.apps.integrations.jupyter import main as A
A(["--prefix", sys.prefix, "environment=jupyter", "memory=1G"])
lab = jupyter("jupyterlab", PYTHONPATH=os.environ["PYTHONPATH"])
def opened(name):
    asked = urllib.request.Request(f"http://{lab}/api/kernels", json.dumps({"name": name}).encode())
    kernel = json.load(urllib.request.urlopen(asked))["id"]
    return websocket.create_connection(f"ws://{lab}/api/kernels/{kernel}/channels")
def run(kernel):
    header = {"msg_id": os.urandom(8).hex(), "msg_type": "execute_request", "session": "s", "username": "", "version": "5.3"}
    kernel.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "content": {
        "code": "1", "silent": False}}))
    over = set()
    while not over >= {"execute_reply", "idle"}:
        told = json.loads(kernel.recv())
        if told["parent_header"].get("msg_id") == header["msg_id"]:
            over |= {told["msg_type"], told["content"].get("execution_state")}
b, a = opened("python3"), opened("leeward")
""", "run(b)", "run(a)", ""),
}
#: Those whose packages the sandbox has as well.
INSIDE = ("swe-rex", "jupyter")
#: Those whose environment is one of `leeward serve`'s clients.
CLIENTS = ("openai-agents", "smolagents")

#: What a server does behind its answer is over after a rest.
PROGRAM = """
import asyncio, glob, json, os, socket, subprocess, sys, time, traceback, urllib.request, leeward
URL, TOKEN, *servers = {served}
FLOORS, PLACE = {floors!r}, "127.0.0.1:{port}"
closing = []
def begun(*words, **env):
    env = {{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "JUPYTER_GATEWAY_URL")}} | env
    closing.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env))
    servers.append(closing[-1].pid)
    while closing[-1].poll() is None:
        try:
            socket.create_connection(("127.0.0.1", {port})).close()
            return PLACE
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{{words}} has ended")
def jupyter(module, **env):
    return begun({jupyter!r}, "-m", module, "--no-browser", "--allow-root", "--IdentityProvider.token=",
                 "--ServerApp.disable_check_xsrf=True", "--ServerApp.port={port}", **env)
async def main():
{made}
    async def spent():
        await asyncio.sleep(0.05 if servers else 0)
        threads = [each for server in servers for each in glob.glob(f"/proc/{{server}}/task/*/schedstat")]
        return time.process_time(), sum(int(open(each).read().split()[0]) for each in threads) / 1e9
    found = []
    for turn in range({rounds} + 5):
        before = await spent()
        {client}
        between = await spent()
        {adapter}
        over = await spent()
        {floor}
        last = await spent()
        found.append([two - one for one, two in zip(before + between + over, between + over + last)])
    clock = []
    for turn in range({rounds}):
        began = time.perf_counter()
        {client}
        between = time.perf_counter()
        {adapter}
        clock.append(began + time.perf_counter() - 2 * between)
    json.dump([found[5:], clock], sys.stderr)
    sys.stderr.flush()
    end()
    os._exit(0)  # what was opened ends with the program
def end():
    for each in closing:
        each.kill()  # a kernel of its ends when it sees that
        each.wait()
try:
    asyncio.run(main())
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    end()
    os._exit(1)  # and with what has threads
"""


def interpreter(name: str) -> Path:
    """Of the framework's environment; of ours where a client's lacks what leeward's own needs."""
    if name in SERVED:
        return ROOT / (".venv-framework-jupyter" if name in ("nbclient", "jupyterlab") else ".venv") / "bin/python"
    return ROOT / f".venv-{'client' if name in CLIENTS else 'framework'}-{name}/bin/python"


def packages_of(name: str) -> list[Path]:
    """What a client needs beyond our environment."""
    found = ROOT / f".venv-client-{name.removeprefix('client-')}"
    return [*found.glob("lib/python3*/site-packages"), *found.glob("source")] if name in SERVED else []


def configured(folder: Path) -> Path:
    """A configuration with the environments of INSIDE, and an image."""
    made = Path(folder, "config.toml")
    rows = [f'[environments.{name}]\npath = "{interpreter(name).parents[1]}"\n' for name in INSIDE
            if interpreter(name).exists()]
    made.write_text("".join((f'images_folder = "{images.with_users(folder)}"\n', *rows)))
    made.chmod(0o600)
    return made


def measured(name: str, socket: str, rounds: int, points: Path) -> tuple[list[list[float]], list[float]]:
    """
    Processor seconds of each round, of the program and of servers: in the client's call, the adapter's, the floor's; and by
    the clock in a row, how much longer the adapter's call took than the client's.
    """
    with contextlib.ExitStack() as stack:
        served: tuple[str | int, ...] = f"127.0.0.1:{free_port()}", ""
        floor = "pass"
        if name in SERVED:
            words, made, client, adapter, floor = SERVED[name]
            if words:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                door = stack.enter_context(Served(Path(socket), folder, *words.replace("PLACE", str(served[0])).split()))
                served = door.url, door.new_token(name, "--quota", "rate=100000"), door.process.pid
        else:
            what, made, client, adapter = ROWS[name]
            module, _, kind = what.partition(".")
            made = f"from leeward.apps.integrations.{module} import {kind} as A\n{made}"
        program = PROGRAM.format(served=served, made=textwrap.indent(made, "    "), client=client, adapter=adapter,
                                 floor=floor or "pass", rounds=rounds, port=free_port(), jupyter=str(interpreter("nbclient")),
                                 floors=str(ROOT / "bench/floors.py"))
        places = (ROOT, ROOT / "cli", points, *packages_of(name))
        env = {**os.environ, "LEEWARD_SOCKET": socket, "PYTHONPATH": os.pathsep.join(map(str, places)),
               "CREWAI_DISABLE_TELEMETRY": "true"}
        said = subprocess.run([interpreter(name), "-W", "ignore", "-c", program], env=env, capture_output=True, text=True,
                              check=False)
    if said.returncode:
        raise SystemExit(said.stderr)
    found, clock = json.JSONDecoder().raw_decode(said.stderr, said.stderr.rindex("[[["))[0]
    return found, clock


def main() -> None:
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("names", nargs="*", default=[*ROWS, *SERVED])
    reading.add_argument("--rounds", type=int, default=200)
    reading.add_argument("--record", action="store_true")
    asked = reading.parse_args()
    print(f"{'adapter':18} {'client ms':>10} {'beside it ms':>13} {'of it a server ms':>17} {'of it the floor ms':>18}"
          f" {'by the clock ms':>16}")
    with (tempfile.TemporaryDirectory(dir=packages.outside_tmp()) as folder,
          daemon(None, f"--config={configured(Path(folder))}") as socket):
        points = entry_points.written(Path(folder, "points"))
        for name in asked.names:
            if not interpreter(name).exists():
                print(f"{name:18} has no environment here")
                continue
            times, in_a_row = measured(name, socket, asked.rounds, points)
            client, server, beside, floor, clock = (1000 * statistics.median(each) for each in (
                [own for own, *_ in times], [row[3] - row[1] for row in times],
                [sum(row[2:4]) - sum(row[:2]) for row in times], [sum(row[4:]) - sum(row[:2]) for row in times],
                in_a_row))
            has_floor = name in SERVED and SERVED[name][-1]
            print(f"{name:18} {client:10.2f} {beside:13.2f} {server:17.2f} {floor if has_floor else 0:18.2f} {clock:16.2f}",
                  flush=True)
            if asked.record:
                found = {"overhead_ms": round(beside, 2), "clock_ms": round(clock, 2),
                         **({"floor_ms": round(floor, 2)} if has_floor else {})}
                runs.added("frameworks", {name: {**runs.recorded("frameworks")[name], **found}})


if __name__ == "__main__":
    main()
