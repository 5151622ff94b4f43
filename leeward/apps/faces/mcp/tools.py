"""
The tools of `leeward mcp`: a shell, Python and files in one live sandbox.

Trust:     none in the arguments, nor in what the sandbox returns, which is text for the model.

Theory of operation. Calls run in threads of their own. The first one opens the sandbox. If it has ended, for example
when it was idle for too long, the call that meets this says so, and the next call opens another one. A call can be
cancelled from another thread: its process or the code of its kernel is ended, and nothing is started for it afterwards.
"""

from __future__ import annotations

import contextlib
import mimetypes
import posixpath
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leeward.client.file_calls import FileInfo
from leeward.client.model_text import cut, text_of
from leeward.client.mounts import WORKDIR
from leeward.client.process import Kernel
from leeward.client.protecting import FolderGuard, Unprotected
from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, Cancelled, DaemonError, LeewardError, SandboxOver, SessionOver, told_with_type
from leeward.spec.outcome import Result

#: Bytes of a command's output that are kept for its answer.
_OUTPUT = 1 << 20
#: Bytes of a file that are read, and rows of a list.
_READ, _ROWS = 256 << 10, 200
#: Bytes of a file as a resource; images of an answer and bytes of them together: at most.
MOST_RESOURCE, _IMAGES, _IMAGE_BYTES = 4 << 20, 8, 4 << 20
#: Pictures and sounds that clients show.
_SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "audio/wav", "audio/mpeg", "audio/ogg"})
#: Other names of theirs.
_KINDS = {"audio/x-wav": "audio/wav", "audio/vnd.wave": "audio/wav"}
#: Seconds after an interrupt in which Python code may end by itself.
_GRACE_S = 5.0

_TEXT = {"type": "string"}


def _tool(name: str, about: str, *required: str, **optional: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": about, "inputSchema": {
        "type": "object", "properties": {**dict.fromkeys(required, _TEXT), **optional}, "required": list(required),
        "additionalProperties": False}}


#: The tools, as `tools/list` shows them.
TOOLS = (
    _tool("run_shell", "Run a shell command in the sandbox, in /workspace.", "command"),
    _tool("run_python", "Run Python in the sandbox. Variables stay for the next call; the value of the last expression"
          " is shown.", "code"),
    _tool("read_file", "Return what is in a file of the sandbox: text, a picture, a sound, or bytes.", "path"),
    _tool("write_file", "Write a file of the sandbox, with the folders that lead to it.", "path", "content"),
    _tool("edit_file", "Replace a text that is in a file of the sandbox exactly once.", "path", "old", "new"),
    _tool("list_files", "List the names in a folder of the sandbox; those of folders end with a slash.", path=_TEXT),
)
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {tool["name"]: tool["inputSchema"] for tool in TOOLS}


class WrongArguments(Exception):
    """There is no such tool, or it has other arguments."""


class ToolCall:
    """
    One call of a tool; WrongArguments if there is no tool *name*, or it doesn't take *given*.

    Attributes:
        images: MIME types and bytes of pictures and sounds that it has shown, beside its text.
        file: the path and the content of a file that is neither text nor one of these.
    """

    def __init__(self, name: object, given: object) -> None:
        schema = _SCHEMAS.get(name) if isinstance(name, str) else None
        if not isinstance(name, str) or schema is None:
            raise WrongArguments(f"there is no tool {name!a:.100}")
        if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
            raise WrongArguments(f"the arguments of {name} are texts")
        for key in given.keys() - schema["properties"].keys():
            raise WrongArguments(f"{name} has no argument {key!a:.100}")
        for key in schema["required"] - given.keys():
            raise WrongArguments(f"{name} needs the argument {key}")
        self.name, self.given = name, given
        self.images: list[tuple[str, bytes]] = []
        self.file: tuple[str, bytes] | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self._end: Callable[[], object] | None = None

    def show(self, kind: str, content: str | bytes) -> None:
        """Add a picture or a sound to the answer, if it is one that clients show, and there is room."""
        if kind in _SHOWN and isinstance(content, bytes) and (
                len(self.images) < _IMAGES and len(content) + sum(len(each) for _, each in self.images) <= _IMAGE_BYTES):
            self.images.append((kind, content))

    def cancel(self) -> None:
        """End what the call runs, and let it start nothing more. This may wait."""
        with self._lock:
            if not self._cancelled and self._end is not None:
                with contextlib.suppress(LeewardError, OSError):  # it has ended, or its sandbox has
                    self._end()
            self._cancelled = True

    @contextlib.contextmanager
    def ended_by(self, end: Callable[[], object]) -> Iterator[None]:
        """
        `cancel` calls *end* within the block, which isn't left while *end* runs, so *end* can't hit the next call.

        Raises Cancelled if the call was cancelled before.
        """
        with self._lock:
            if self._cancelled:
                raise Cancelled("the call was cancelled")
            self._end = end
        try:
            yield
        finally:
            with self._lock:
                self._end = None


class SandboxTools:
    """
    The tools on one sandbox, each of *timeout* seconds at most.

    *open_sandbox* makes a sandbox, without opening it, and what protects its folder, if anything does; *end* closes it.
    *told_as* is the error that a model is told of in place of one.
    """

    def __init__(self, open_sandbox: Callable[[], tuple[Sandbox, FolderGuard | None]], timeout: float,
                 end: Callable[[Sandbox], object] = lambda box: box.close(),
                 told_as: Callable[[Exception], Exception] = lambda error: error) -> None:
        self._open, self._timeout, self._end, self.told_as = open_sandbox, timeout, end, told_as
        self._lock = threading.Lock()
        self._python = threading.Lock()
        self._box: Sandbox | None = None
        self._guard: FolderGuard | None = None
        self._kernel: tuple[Sandbox, Kernel] | None = None
        self._closed = False

    def run(self, call: ToolCall) -> tuple[str, bool]:
        """Run a call to its end. Returns a text for the model, and whether the call has failed."""
        box = None
        try:
            box = self._opened()
            text, failed = getattr(self, f"_{call.name}")(box, call)
        except SandboxOver as error:
            text, failed = f"{error}. Its files and variables are lost; the next call opens a new one.", True
            said = self._forget(box)
        except (LeewardError, OSError, ValueError) as error:
            text, failed = told_with_type(self.told_as(error)), True
            said = self._put_away(box)
        else:
            said = self._put_away(box)
        return cut(f"{text}\n{said}" if said else text), failed or bool(said)

    def _opened(self) -> Sandbox:
        with self._lock:
            if self._closed:
                raise Cancelled("the server is ending")
            if self._box is None:
                self._box, self._guard = self._open()
            return self._box

    def resources(self) -> list[FileInfo]:
        """Files in the sandbox's work folder, the first ones by name; none before a call has opened the sandbox."""
        with self._lock:
            box, guard = self._box, self._guard
        if box is None:
            return []
        rows = {row.name: row for row in box.files.list(WORKDIR) if row.kind == "file"}
        return [rows[name] for name in (sorted(rows) if guard is None else guard.shown(sorted(rows)))[:_ROWS]]

    def names(self, begins: str) -> list[str]:
        """The paths that begin so, in one folder; those of folders end with a slash. None before the sandbox is open."""
        with self._lock:
            box, guard = self._box, self._guard
        folder, _, name = begins.rpartition("/")
        if box is None or guard is not None:  # what the guard hides isn't told
            return []
        try:
            rows = box.files.list(folder or "/")
        except OSError:
            return []
        return sorted(f"{folder}/{row.name}{'/' * row.is_folder}" for row in rows if row.name.startswith(name))

    def resource(self, path: str) -> bytes:
        """A file's content; BadRequest if it has more than MOST_RESOURCE bytes."""
        content = self._opened().files.read(path, size=MOST_RESOURCE + 1)
        if len(content) > MOST_RESOURCE:
            raise BadRequest(f"the file has more than {MOST_RESOURCE} bytes")
        return content

    def _put_away(self, box: Sandbox | None) -> str:
        """Rename what the host would run at once, and return a text about it for the model; else end the sandbox."""
        with self._lock:
            if self._guard is None or box is None or box is not self._box:
                return ""
            holds = self._guard.holds()
            try:
                said = _told(self._guard.put_away(lambda: self._end(box)))
                if holds:
                    return said
                said = f"The sandbox has ended, since what it may not write was replaced on the host. {said}".rstrip()
            except Unprotected as error:
                said = f"The sandbox was ended: {error}"
        with contextlib.suppress(DaemonError):
            box.close()
        self._forget(box)
        return said

    def _forget(self, box: Sandbox | None) -> str:
        """The sandbox *box* has ended; the next call opens another one. Returns a text as `_put_away` does."""
        with self._lock:
            if box is None or self._box is not box:
                return ""
            guard, self._box, self._guard = self._guard, None, None
        if guard is None:
            return ""
        with contextlib.closing(guard):
            try:
                return _told(guard.put_away(lambda: None))
            except Unprotected as error:
                return str(error)

    def close(self) -> None:
        """Close the sandbox, which ends what runs in it."""
        with self._lock:
            self._closed, box = True, self._box
        if box is not None:
            with contextlib.suppress(DaemonError):
                self._end(box)
            self._forget(box)

    def _run_shell(self, box: Sandbox, call: ToolCall) -> tuple[str, bool]:
        process = box.start(["/bin/sh", "-c", "--", call.given["command"]], output=_OUTPUT,
                            timeout=self._timeout)
        try:
            with call.ended_by(process.kill):
                return _shown(process.result())
        except Cancelled:  # while it was started
            process.kill()
            raise

    def _run_python(self, box: Sandbox, call: ToolCall) -> tuple[str, bool]:
        with self._python:  # in turn, so that an interrupt hits this call's code
            if self._kernel is None or self._kernel[0] is not box:
                self._kernel = box, box.kernel()
            _, kernel = self._kernel
            over = threading.Event()

            def end() -> None:
                kernel.interrupt()
                if not over.wait(_GRACE_S):  # the code goes on
                    kernel.close()

            try:
                with call.ended_by(end):
                    try:
                        result = kernel.execute(call.given["code"], output=_OUTPUT, timeout=self._timeout)
                    finally:
                        over.set()
            except SessionOver as error:
                self._kernel = None
                return f"{error}. Its variables are lost; the next call starts a new interpreter.", True
        text, failed = _shown(result)
        for forms in result.results:
            for kind, content in forms.items():
                call.show(kind, content)
        return text, failed

    @staticmethod
    def _read_file(box: Sandbox, call: ToolCall) -> tuple[str, bool]:
        path = call.given["path"]
        kind, _ = mimetypes.guess_type(path)
        kind = _KINDS.get(kind or "", kind)
        if kind in _SHOWN:
            call.show(kind, box.files.read(path, size=_IMAGE_BYTES + 1))
            if call.images:
                return "[Image]" if kind.startswith("image/") else "[Sound]", False
        content = box.files.read(path, size=_READ)
        if b"\0" in content and len(content) < _READ:
            call.file = path, content
            return f"[Bytes: {len(content)}]", False
        return content.decode("utf-8", "replace") or "[Empty file]", False

    @staticmethod
    def _write_file(box: Sandbox, call: ToolCall) -> tuple[str, bool]:
        path, content = call.given["path"], call.given["content"]
        box.files.write(path, content)
        return f"Wrote {len(content)} characters to {path}", False

    @staticmethod
    def _edit_file(box: Sandbox, call: ToolCall) -> tuple[str, bool]:
        box.files.edit(call.given["path"], call.given["old"], call.given["new"])
        return f"Edited {call.given['path']}", False

    def _list_files(self, box: Sandbox, call: ToolCall) -> tuple[str, bool]:
        path = call.given.get("path", ".")
        names = [entry.name + ("/" if entry.kind == "folder" else "") for entry in box.files.list(path)]
        guard = self._guard
        if guard is not None and posixpath.normpath(posixpath.join(WORKDIR, path)) == WORKDIR:
            names = guard.shown(names)
        more = [f"[{len(names) - _ROWS} more]"] if len(names) > _ROWS else []
        return "\n".join([*names[:_ROWS], *more]) or "[Empty folder]", False


def _told(moved: list[str]) -> str:
    """A text about names that were put away; "" for none."""
    return "" if not moved else ("Renamed, since programs on the host would run it at once, so that nothing runs it:"
                                 f" {', '.join(map(ascii, moved[:_ROWS]))}")


def _shown(result: Result) -> tuple[str, bool]:
    return text_of(result), bool(result.exit_code)
