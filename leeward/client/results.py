"""Makes a Result from a reply; large output stays in the memory file that the daemon has sealed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leeward.client.arena import map_arenas, piece
from leeward.client.conversation import checked
from leeward.spec.outcome import JobError, LeftOut, LeftOutReason, Limit, Outcome, Result
from leeward.wire.replies import Reply, parse_result


class MappedResult(Result):
    """
    A Result in a read-only mapping, which lives as long as the result or a view of it. The first access to `stdout` or
    `stderr` copies the bytes; `stdout_view` and `stderr_view` are views of the mapping itself.
    """

    # Not dataclass fields. `stdout` and `stderr` aren't set at first: __getattr__ sets them.
    _views: Mapping[str, memoryview]

    def __init__(self, stdout: memoryview, stderr: memoryview, fields: Mapping[str, Any]) -> None:
        self.__dict__.update(fields, _views={"stdout": stdout, "stderr": stderr})

    def __getattr__(self, name: str) -> bytes:
        # Python calls this only while the instance has no such attribute.
        if name not in ("stdout", "stderr"):
            raise AttributeError(f"a Result has no {name!r}")
        content = bytes(self._views[name])
        self.__dict__[name] = content
        return content

    @property
    def stdout_view(self) -> memoryview:
        return self._views["stdout"]

    @property
    def stderr_view(self) -> memoryview:
        return self._views["stderr"]

    def __reduce__(self) -> tuple[type[Result], tuple[Any, ...]]:
        # A mapping can't be pickled or copied, so a plain Result is made.
        return Result, (self.stdout, self.stderr, self.exit_code, self.outcome, self.limit, self.duration,
                        self.cpu_time, self.memory_peak, dict(self.denied), self.truncated, self.degraded,
                        self.error, dict(self.files), self.label, self.job, self.left_out,
                        self.results, self.value, self.stdout_omitted, self.stderr_omitted, self.starved)


class MappedFiles(Mapping[str, bytes]):
    """Collected files: content by name. Each access to a mapped file copies its content; `view` doesn't copy."""

    def __init__(self, pieces: Mapping[str, bytes | memoryview]) -> None:
        self._pieces = pieces

    def __getitem__(self, name: str) -> bytes:
        return bytes(self._pieces[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def view(self, name: str) -> memoryview:
        """A view of the file's content, without a copy. Raises KeyError if there is no such file."""
        return memoryview(self._pieces[name])

    def __repr__(self) -> str:
        return f"<files {', '.join(f'{name} ({len(content)} bytes)' for name, content in self._pieces.items())}>"


def result_of(reply: Reply, descriptors: Sequence[int]) -> Result:
    """The result in *reply*; BadReply if there is none. Closes *descriptors* in any case."""
    arenas = map_arenas(descriptors, reply.arenas)
    fields = checked(parse_result, reply)
    fields["outcome"] = Outcome(fields["outcome"])
    if fields["limit"] is not None:
        fields["limit"] = Limit(fields["limit"])
    if fields["error"] is not None:
        fields["error"] = JobError(**fields["error"])
    fields["left_out"] = tuple(LeftOut(name, LeftOutReason(reason)) for name, reason in fields["left_out"])
    if not arenas:
        return Result(**fields)
    fields["files"] = MappedFiles({name: piece(value, arenas) for name, value in fields["files"].items()})
    stdout, stderr = (memoryview(piece(fields.pop(name), arenas)) for name in ("stdout", "stderr"))
    return MappedResult(stdout, stderr, fields)
