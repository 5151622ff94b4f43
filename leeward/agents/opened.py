"""
Opens the folders of the host that an agent's sandbox mounts, right before the sandbox is opened.

Runs in:   the caller's program.
Holds:     what is mounted is what was looked at, and what a person was asked about. Sources of mounts are real paths,
           and are opened through no link, since another user or an agent may have put one there in the meantime. State
           folders are opened through no link that an agent can have made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from leeward.agents.request import OPENED, AgentRequest
from leeward.agents.written import open_beside, open_real, writable_by_agents
from leeward.dataclass import replace
from leeward.errors import RequestRejected


class OpenedMounts:
    """
    The mounts of *request*, each with a descriptor as its source. State folders are made unless they exist.

    Attributes:
        mounts: in the order of the request.

    Raises:
        RequestRejected: a folder can't be opened, or only through a link that isn't followed.
    """

    def __init__(self, request: AgentRequest, environ: Mapping[str, str]) -> None:
        self._opened = list[int]()
        written = writable_by_agents(request.written, environ)
        try:
            for folder in request.folders:
                self._make(folder)
            self.mounts = [each if source.startswith(OPENED) else replace(each, source=self._open(
                source, written if source in request.folders else None))
                for each in request.options["mounts"] for source in (os.fspath(each.source),)]
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _make(folder: str) -> None:
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
        except OSError as error:
            raise _refused(folder, error) from None

    def _open(self, source: str, written: Callable[[str], Iterable[str]] | None) -> str:
        try:
            self._opened.append(open_real(source) if written is None else open_beside(source, written))
        except OSError as error:
            raise _refused(source, error) from None
        return f"{OPENED}{self._opened[-1]}"

    def close(self) -> None:
        """Close the descriptors: the sandbox was opened. May be called repeatedly."""
        while self._opened:
            os.close(self._opened.pop())

    def __enter__(self) -> OpenedMounts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _refused(path: str, error: OSError) -> RequestRejected:
    return RequestRejected(f"{path!a:.200}: {(error.strerror or str(error)).lower()}")
