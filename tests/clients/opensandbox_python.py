"""OpenSandbox's Python SDK as it is, against `leeward serve opensandbox`; test_serve_e2b.py runs this in its environment."""

import asyncio
import os
import threading
from datetime import timedelta
from io import BytesIO

from opensandbox import Sandbox, SandboxManagerSync, SandboxSync
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.filesystem import ContentReplaceEntry, MoveEntry, SearchEntry, SetPermissionEntry, WriteEntry
from opensandbox.models.sandboxes import NetworkRule, SandboxFilter

IMAGE = "opensandbox/code-interpreter:v1.0.2"
PLACE = {"domain": os.environ["PLACE"], "api_key": os.environ["KEY"]}


def refused(status, call, *given, **named):
    found = None
    try:
        call(*given, **named)
    except SandboxApiException as error:
        found = error.status_code
    assert status == found, (call, found)


def text(execution):
    return [message.text for message in execution.logs.stdout]


def commands(box):
    done = box.commands.run("echo one; printf two; echo three >&2; exit 3")
    assert (["one", "two"], ["three"]) == (text(done), [message.text for message in done.logs.stderr])
    assert (3, "CommandExecError", "3") == (done.exit_code, done.error.name, done.error.value)
    done = box.commands.run("pwd; echo $A", opts=RunCommandOpts(working_directory="/tmp", envs={"A": "b"}))
    assert (0, ["/tmp", "b"]) == (done.exit_code, text(done))
    late = box.commands.run("sleep 100", opts=RunCommandOpts(timeout=timedelta(milliseconds=300)))
    assert late.error.value == "124", late

    behind = box.commands.run("echo a; echo b; exec sleep 100", opts=RunCommandOpts(background=True))
    found, cursor = "", None
    while "b\n" not in found:
        logs = box.commands.get_background_command_logs(behind.id, cursor=cursor)
        found, cursor = found + logs.content, logs.cursor if logs.cursor is not None else cursor
    assert "a\nb\n" == found
    assert box.commands.get_command_status(behind.id).running
    box.commands.interrupt(behind.id)
    assert not box.commands.get_command_status(behind.id).running

    begun, results = threading.Event(), []
    handlers = ExecutionHandlersSync(on_init=lambda init: results.append(init.id) or begun.set())
    thread = threading.Thread(target=lambda: results.append(box.commands.run("sleep 100", handlers=handlers)))
    thread.start()
    assert begun.wait(60)
    box.commands.interrupt(results[0])
    thread.join(60)
    assert results[1].error.value == "137"

    session = box.commands.create_session(working_directory="/tmp")
    box.commands.run_in_session(session, "export A='x y'; f() { echo f; }; mkdir -p 'a b'; cd 'a b'; set -- gone")
    assert ["/tmp/a b", "x y", "f"] == text(box.commands.run_in_session(session, "pwd; echo $A; f"))
    assert 7 == box.commands.run_in_session(session, "cd /; exit 7").exit_code
    assert ["/"] == text(box.commands.run_in_session(session, "pwd"))
    assert ["/var"] == text(box.commands.run_in_session(session, "pwd", working_directory="/var"))
    box.commands.delete_session(session)
    refused(404, box.commands.run_in_session, session, "true")


def files(box):
    box.files.create_directories([WriteEntry(path="/tmp/d/e", mode=700)])
    box.files.write_files([WriteEntry(path="/tmp/d/a.txt", data="line1\nline2\nline3", mode=640),
                           WriteEntry(path="/tmp/new/b", data=b"\0\xff"),
                           WriteEntry(path="/tmp/d/e/c", data=BytesIO(b"c" * 99))])
    info = box.files.get_file_info(["/tmp/d/a.txt", "/tmp/d/e"])
    assert (640, 17) == (info["/tmp/d/a.txt"].mode, info["/tmp/d/a.txt"].size)
    assert 700 == info["/tmp/d/e"].mode
    assert "line2\nline3" == box.files.read_file("/tmp/d/a.txt", offset=2, limit=5)
    assert b"\0\xff" == box.files.read_bytes("/tmp/new/b")
    assert b"c" * 99 == b"".join(box.files.read_bytes_stream("/tmp/d/e/c"))
    changed = box.files.replace_contents_detailed([ContentReplaceEntry(
        path="/tmp/d/a.txt", old_content="line", new_content="row")])
    assert [3] == [each.replaced_count for each in changed]
    box.files.set_permissions([SetPermissionEntry(path="/tmp/d/a.txt", mode=600)])
    box.files.move_files([MoveEntry(src="/tmp/d/a.txt", dest="/tmp/d/f")])
    assert "row1\nrow2\nrow3" == box.files.read_file("/tmp/d/f")
    assert 600 == box.files.get_file_info(["/tmp/d/f"])["/tmp/d/f"].mode
    assert {"/tmp/d/f", "/tmp/d/e/c"} == {each.path for each in box.files.search(SearchEntry(path="/tmp/d", pattern="**"))}
    box.files.delete_files(["/tmp/d/f"])
    refused(404, box.files.read_file, "/tmp/d/f")
    box.files.delete_directories(["/tmp/d", "/tmp/new"])
    refused(501, box.files.write_files, [WriteEntry(path="/tmp/x", data="x", owner="root")])


def control():
    config = ConnectionConfigSync(**PLACE)
    box = SandboxSync.create(IMAGE, connection_config=config, timeout=timedelta(seconds=100), metadata={"a": "b &=c"},
                             env={"X": "1"})
    assert box.is_healthy()
    assert ["1"] == text(box.commands.run("echo $X"))
    info = box.get_info()
    assert ("Running", {"a": "b &=c"}, IMAGE) == (info.status.state, info.metadata, info.image.image)
    assert 90 < (info.expires_at - info.created_at).total_seconds() < 110
    assert 550 < (box.renew(timedelta(seconds=600)).expires_at - info.created_at).total_seconds() < 650
    assert 0 < box.get_metrics().memory_used_in_mib <= box.get_metrics().memory_total_in_mib
    manager = SandboxManagerSync.create(connection_config=config)
    rows = manager.list_sandbox_infos(SandboxFilter(metadata={"a": "b &=c"}, states=["Running"])).sandbox_infos
    assert [box.id] == [row.id for row in rows]
    assert [] == manager.list_sandbox_infos(SandboxFilter(metadata={"a": "b &=c"}, states=["Paused"])).sandbox_infos
    again = SandboxSync.connect(box.id, connection_config=config)
    commands(again)
    files(again)
    box.pause()
    assert ("Paused", False) == (box.get_info().status.state, box.is_healthy())
    SandboxSync.resume(box.id, connection_config=config)
    assert "Running" == box.get_info().status.state
    other = ConnectionConfigSync(domain=PLACE["domain"], api_key=os.environ["OTHER"])
    refused(404, SandboxSync.connect, box.id, connection_config=other)
    refused(401, SandboxSync.create, IMAGE, connection_config=ConnectionConfigSync(domain=PLACE["domain"], api_key="none"))
    refused(400, SandboxSync.create, "python:3.12", connection_config=config)
    refused(501, SandboxSync.create, IMAGE, entrypoint=["sh"], connection_config=config)
    assert ("deny", []) == (box.get_egress_policy().default_action, box.get_egress_policy().egress)  # its token has none
    refused(400, box.patch_egress_rules, [NetworkRule(action="allow", target="a.example")])
    assert {"a": "2"} == manager.patch_sandbox_metadata(box.id, {"a": "2", "x": None}).metadata
    box.kill()
    refused(404, box.get_info)


async def asynchronous():
    box = await Sandbox.create(IMAGE, connection_config=ConnectionConfig(**PLACE))
    assert ["42"] == text(await box.commands.run("echo $((6 * 7))"))
    running = asyncio.ensure_future(box.commands.run("touch begun; sleep 100; touch over"))
    while not text(await box.commands.run("ls begun")):
        pass
    running.cancel()
    while text(await box.commands.run("pgrep -x sleep")):  # a caller that goes ends its command
        pass
    await box.kill()


control()
asyncio.run(asynchronous())
