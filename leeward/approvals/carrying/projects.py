"""
The projects of requests. Each is opened once, so that comparing and writing use one descriptor even if the folder at
the path is replaced.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

import threading

from leeward.approvals.carrying.apply import Project
from leeward.approvals.queue.asking import project_of
from leeward.approvals.queue.requests import ApprovalRequest
from leeward.errors import BadRequest, Busy

#: Projects at once.
MOST_PROJECTS = 256


class OpenProjects:
    """
    The open projects by their paths, MOST_PROJECTS at most.

    Args:
        default: the project of requests that name none; None for none.
    """

    def __init__(self, default: Project | None) -> None:
        self.default = default
        self._lock, self._open = threading.Lock(), dict[str, Project]()
        if default is not None:
            self._open[default.path] = default

    def open(self, path: str) -> Project:
        """
        The project at *path*, an absolute path without links; opens it at the first call.

        Raises:
            BadRequest: the folder can't be opened.
            Busy: MOST_PROJECTS projects are open already.
        """
        with self._lock:
            found = self._open.get(path)
            if found is None:
                if len(self._open) >= MOST_PROJECTS:
                    raise Busy(f"{MOST_PROJECTS} projects are open already")
                try:
                    found = self._open[path] = Project(path)
                except OSError as error:
                    raise BadRequest(f"{path!r:.200}: {(error.strerror or 'an error').lower()}") from None
            return found

    def of(self, request: ApprovalRequest) -> Project:
        """
        The project that *request* is about.

        Raises:
            BadRequest: the request names none and there is no default, or the folder can't be opened.
            Busy: as for `open`.
        """
        named = project_of(request.metadata)
        if named:
            return self.open(named)
        if self.default is None:
            raise BadRequest("the request names no project, and the service has no default one")
        return self.default

    def close(self) -> None:
        """Close all projects except the default, which belongs to the caller."""
        with self._lock:
            for project in self._open.values():
                if project is not self.default:
                    project.close()
            self._open.clear()
