"""
The tools and resources that the protocol's conformance suite asks for, by those of `leeward serve mcp`.

A server between the suite and the real one puts calls of real tools in the place of calls of the suite's own. The answers
are passed on as they are.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kit.live_daemon import PATIENCE

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

#: The suite's tools: ours, with its arguments.
TOOLS = {
    "test_simple_text": ("run_shell", {"command": "echo This is a simple text response for testing."}),
    "test_image_content": ("run_python", {"code": f"import base64\nclass Pixel:\n    def _repr_png_(self):\n"
                                                  f"        return base64.b64decode('{_PIXEL}')\nPixel()"}),
    "test_audio_content": ("read_file", {"path": "sound.wav"}),
    "test_embedded_resource": ("read_file", {"path": "data.bin"}),
    "test_error_handling": ("run_shell", {"command": "echo This tool intentionally returns an error; exit 1"}),
    "test_tool_with_progress": ("run_shell", {"command": "sleep 3.5"}),
}
#: What makes the files that they read.
FIRST = {"test_audio_content": "printf RIFF > sound.wav", "test_embedded_resource": "printf '\\000\\377' > data.bin"}
#: The suite's resources: the file that stands for one, and what makes it.
RESOURCES = {
    "test://static-text": ("static.txt", "echo static > static.txt"),
    "test://static-binary": ("static.bin", "printf '\\377\\376' > static.bin"),
    "test://template/123/data": ("template/123/data", "mkdir -p template/123; echo 123 > template/123/data"),
}


def _translated(message: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A message with ours in the place of what the suite has; and a command that has to be run first, or ""."""
    params = message.get("params", {})
    if message.get("method") == "tools/call" and params["name"] in TOOLS:
        name, arguments = TOOLS[params["name"]]
        return {**message, "params": {**params, "name": name, "arguments": arguments}}, FIRST.get(params["name"], "")
    if message.get("method") == "resources/read" and params["uri"] in RESOURCES:
        path, first = RESOURCES[params["uri"]]
        return {**message, "params": {**params, "uri": f"sandbox:///workspace/{path}"}}, first
    if message.get("method") == "completion/complete":
        return {**message, "params": {"ref": {"type": "ref/resource", "uri": "sandbox:///{+path}"},
                                      "argument": {"name": "path", "value": "workspace/da"}}}, FIRST["test_embedded_resource"]
    return message, ""


@contextmanager
def between(address: tuple[str, int]) -> Iterator[str]:
    """Serve between the suite and the server at *address*; gives the URL."""

    class Between(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        @contextmanager
        def _asked(self, body: bytes | None) -> Iterator[http.client.HTTPResponse]:
            connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
            try:
                connection.request(self.command, self.path, body, headers)
                with connection.getresponse() as answer:
                    yield answer
            finally:
                connection.close()

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))) or None
            if body is not None:
                message, first = _translated(json.loads(body))
                body = json.dumps(message).encode()
                if first:
                    with self._asked(json.dumps({"jsonrpc": "2.0", "id": "first", "method": "tools/call", "params": {
                            "name": "run_shell", "arguments": {"command": first}}}).encode()) as made:
                        made.read()
            self.close_connection = True
            with self._asked(body) as answer:
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while piece := answer.read1(65536):
                    self.wfile.write(piece)
                    self.wfile.flush()

        do_GET = do_POST = do_DELETE = _pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Between)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the suite closes connections
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
