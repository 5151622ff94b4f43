"""
A model for agents' command lines, scripted, on loopback: Anthropic's messages, OpenAI's responses and chat, Gemini's
contents.

    with serving(SCRIPT) as api:
        ...  # an agent that is told http://127.0.0.1:{api.port}
        assert api.results

A script is what the model does, turn by turn: a call of a tool by a name and arguments, or text, which ends it. The
turn is told by the results that the request has in it, so that requests which are repeated get the same answer.
Requests without tools, such as for a title, get a word. aider has no tools: what was run is what the user says of it,
in the words of `RAN`.
"""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leeward.spec.egress_policy import AGENT_PORTS

PATIENCE_S = 30

_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}

#: How aider begins a message that has a command's output.
RAN = "I ran this command"


@dataclass(frozen=True)
class Call:
    """The model calls the tool *name*."""

    name: str
    arguments: dict[str, Any]


Script = Sequence[Call | str]


@dataclass
class ModelApi:
    """
    Attributes:
        port: of 127.0.0.1.
        results: what the calls gave, as text, in order.
        asked: methods and paths of all requests.
        keys: what requests had as their credential.
    """

    port: int
    script: Script
    results: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)

    def turn(self, results: list[str]) -> Call | str:
        self.results = max(self.results, results, key=len)
        return self.script[min(len(results), len(self.script) - 1)]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ModelApi

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._note()
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        path = self.path.partition("?")[0]
        if path.endswith("/messages"):
            self._messages(body)
        elif path.endswith("/responses"):
            self._responses(body)
        elif path.endswith("/chat/completions"):
            self._chat(body)
        elif path.endswith(("enerateContent", ":countTokens")):
            self._contents(body, path)
        else:
            self._json({"input_tokens": 10} if path.endswith("/count_tokens") else {})

    def do_GET(self) -> None:
        self._note()
        self._json({"data": [], "object": "list", "models": []})

    do_HEAD = do_GET

    def _note(self) -> None:
        self.api.asked.append(f"{self.command} {self.path}")
        given = (self.headers.get(name) for name in ("x-api-key", "x-goog-api-key", "authorization"))
        self.api.keys.append(next(filter(None, given), ""))

    # --- Anthropic's ----------------------------------------------------------------

    def _messages(self, body: dict[str, Any]) -> None:
        self.api.tools = [tool["name"] for tool in body.get("tools", ())] or self.api.tools
        results = [_text(block["content"]) for message in body["messages"] if isinstance(message["content"], list)
                   for block in message["content"] if block.get("type") == "tool_result"]
        turn = self.api.turn(results) if body.get("tools") else "word"
        block: dict[str, Any] = ({"type": "text", "text": turn} if isinstance(turn, str) else
                                 {"type": "tool_use", "id": f"toolu_{len(results)}", "name": turn.name,
                                  "input": turn.arguments})
        reason = "end_turn" if isinstance(turn, str) else "tool_use"
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model", "m"),
                   "content": [], "stop_reason": None, "stop_sequence": None,
                   "usage": {"input_tokens": 1, "output_tokens": 1}}
        if not body.get("stream"):
            self._json({**message, "content": [block], "stop_reason": reason})
            return
        if isinstance(turn, str):
            start: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": turn}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(turn.arguments)}
        self._events([
            ("message_start", {"message": message}),
            ("content_block_start", {"index": 0, "content_block": start}),
            ("content_block_delta", {"index": 0, "delta": delta}),
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None},
                               "usage": {"output_tokens": 1}}),
            ("message_stop", {}),
        ])

    # --- Gemini's -------------------------------------------------------------------

    def _contents(self, body: dict[str, Any], path: str) -> None:
        if path.endswith(":countTokens"):
            self._json({"totalTokens": 10})
            return
        tools = [each["name"] for tool in body.get("tools", ()) for each in tool.get("functionDeclarations", ())]
        self.api.tools = tools or self.api.tools
        results = [json.dumps(part["functionResponse"]["response"]) for content in body.get("contents", ())
                   for part in content.get("parts", ()) if "functionResponse" in part]
        turn = self.api.turn(results) if tools else "word"
        part = {"text": turn} if isinstance(turn, str) else {"functionCall": {"name": turn.name,
                                                                              "args": turn.arguments}}
        answer = {"candidates": [{"index": 0, "finishReason": "STOP", "content": {"role": "model", "parts": [part]}}],
                  "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}
        if "stream" not in path:
            self._json(answer)
            return
        self._send(b"data: " + json.dumps(answer).encode() + b"\r\n\r\n", "text/event-stream")

    # --- OpenAI's -------------------------------------------------------------------

    def _responses(self, body: dict[str, Any]) -> None:
        self.api.tools = [each.get("name", each.get("type", "")) for tool in body.get("tools", ())
                          for each in (tool, *tool.get("tools", ()))] or self.api.tools
        results = [_text(item["output"]) for item in body["input"] if isinstance(item, dict)
                   and item.get("type") in ("function_call_output", "custom_tool_call_output")]
        turn = self.api.turn(results)
        item: dict[str, Any]
        if isinstance(turn, str):
            item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": turn, "annotations": []}]}
        else:
            item = {"type": "function_call", "id": f"fc_{len(results)}", "call_id": f"call_{len(results)}",
                    "name": turn.name, "arguments": json.dumps(turn.arguments), "status": "completed"}
        whole = {"id": "resp_1", "object": "response", "status": "completed", "output": [item],
                 "usage": {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
                           "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2}}
        self._events([
            ("response.created", {"response": {**whole, "status": "in_progress", "output": []}}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.output_item.done", {"output_index": 0, "item": item}),
            ("response.completed", {"response": whole}),
        ])

    def _chat(self, body: dict[str, Any]) -> None:
        self.api.tools = [tool["function"]["name"] for tool in body.get("tools", ())] or self.api.tools
        results = [text for message in body["messages"] for text in [_text(message.get("content"))]
                   if message["role"] == "tool" or (message["role"] == "user" and text.startswith(RAN))]
        turn = self.api.turn(results)
        if isinstance(turn, Call) and not body.get("tools"):
            turn = "word"
        message: dict[str, Any] = ({"content": turn} if isinstance(turn, str) else {"content": None, "tool_calls": [
            {"index": 0, "id": f"call_{len(results)}", "type": "function",
             "function": {"name": turn.name, "arguments": json.dumps(turn.arguments)}}]})
        reason = "stop" if isinstance(turn, str) else "tool_calls"
        about = {"id": "chat_1", "created": 1, "model": body.get("model", "m")}
        if not body.get("stream"):
            self._json({**about, "object": "chat.completion", "usage": _USAGE, "choices": [
                {"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}]})
            return
        pieces = [{"index": 0, "delta": {"role": "assistant", **message}, "finish_reason": None},
                  {"index": 0, "delta": {}, "finish_reason": reason}]
        lines = [json.dumps({**about, "object": "chat.completion.chunk", "choices": [piece]}) for piece in pieces]
        self._send("".join(f"data: {line}\n\n" for line in (*lines, "[DONE]")).encode(), "text/event-stream")

    def _events(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        data = "".join(f"event: {name}\ndata: {json.dumps({'type': name, **about})}\n\n" for name, about in events)
        self._send(data.encode(), "text/event-stream")

    def _json(self, data: object, status: int = 200) -> None:
        self._send(json.dumps(data).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(_text(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else json.dumps(content)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None: ...


@contextmanager
def serving(script: Script, tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[ModelApi]:
    """Serve *script* until the block ends."""
    class Handler(_Handler):
        pass

    server = _Server(("127.0.0.1", port), Handler)
    Handler.api = ModelApi(server.server_address[1], script)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Handler.api
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


@contextmanager
def serving_for_agents(script: Script) -> Iterator[ModelApi]:
    """`serving` on a port that the policy `agent` has."""
    for port in (port for port in AGENT_PORTS if port >= 1024):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        with serving(script, port=port) as api:
            yield api
        return
    raise OSError(f"none of the ports {AGENT_PORTS} is free")
