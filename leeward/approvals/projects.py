"""
The projects of requests, each opened once: comparing and writing use one descriptor, whatever happens to the path.

Runs in:   the operator's program that decides.
"""

from __future__ import annotations

import threading

from leeward.approvals.apply import Project
from leeward.approvals.asking import project_of
from leeward.approvals.requests import ApprovalRequest
from leeward.errors import BadRequest, Busy

#: Projects at once.
MOST_PROJECTS = 256


class OpenProjects:
    """
    Args:
        default: of a request that says of no other; None where there is none.
    """

    def __init__(self, default: Project | None) -> None:
        self.default = default
        self._lock, self._open = threading.Lock(), dict[str, Project]()
        if default is not None:
            self._open[default.path] = default

    def open(self, path: str) -> Project:
        """
        The folder *path*, an absolute path without links.

        Raises:
            BadRequest: it can't be opened.
            Busy: there are too many.
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
            BadRequest: it says of none, or that can't be opened.
        """
        named = project_of(request.metadata)
        if named:
            return self.open(named)
        if self.default is None:
            raise BadRequest("it says of no project, and the service has none")
        return self.default

    def close(self) -> None:
        """
        Close all but the default, which is its owner's.
        """
        with self._lock:
            for project in self._open.values():
                if project is not self.default:
                    project.close()
            self._open.clear()
