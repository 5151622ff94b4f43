"""
A live sandbox as a backend of LangChain's Deep Agents.

Runs in:   anybody's program; needs the extra `langchain`.

    from deepagents import create_deep_agent
    from leeward.apps.integrations.langchain import LeewardSandbox

    with leeward.Sandbox() as box:
        agent = create_deep_agent(model, backend=LeewardSandbox(box))
"""

from __future__ import annotations

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileOperationError,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from leeward.client.sandbox import Sandbox
from leeward.errors import told
from leeward.spec.outcome import Outcome

#: Classes of Python's errors, and deepagents' words for them.
_WORDS: tuple[tuple[type[OSError], FileOperationError], ...] = (
    (FileNotFoundError, "file_not_found"), (PermissionError, "permission_denied"), (IsADirectoryError, "is_directory"))


class LeewardSandbox(BaseSandbox):
    """A backend of Deep Agents, in the live sandbox *box*, which the caller closes."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box

    @property
    def id(self) -> str:
        """The sandbox's id. The first use opens the sandbox."""
        return self._box.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """
        Run a line by the sandbox's shell, with its stderr merged into its stdout.

        Args:
            command: the line.
            timeout: seconds; the sandbox's `timeout` by default.

        Returns:
            Output, exit code, and whether the output was cut. If the time limit has ended the command, the exit code is
            124, and the output says so.

        Raises:
            ValueError: the line has a NUL, or half a character. Deep Agents tells the model.
            SandboxOver: the sandbox has ended.
        """
        if "\0" in command:
            raise ValueError("a line of the shell has no NUL")
        options = {} if timeout is None else {"timeout": float(timeout)}
        result = self._box.shell(f"exec 2>&1\n{command}", **options)  # type: ignore[arg-type]  # one key, or none
        output = result.stdout_text + result.stderr_text
        if result.outcome is not Outcome.FINISHED and result.error is not None:
            output += f"\n[{result.error.message}]"
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; missing parent folders are made. An error of one file is in its response."""
        return [FileUploadResponse(path=path, error=self._upload(path, data)) for path, data in files]

    def _upload(self, path: str, data: bytes) -> FileOperationError | str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._box.files.write(path, data)
        except (OSError, ValueError) as error:
            return _word(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files. An error of one file is in its response."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self._box.files.read(path))
        except (OSError, ValueError) as error:
            return FileDownloadResponse(path=path, error=_word(error))


def _word(error: OSError | ValueError) -> FileOperationError | str:
    return next((word for kind, word in _WORDS if isinstance(error, kind)), told(error))
