"""What a server asks of its pool beside jobs, answered by one that has no fast path and bounds nothing."""

from __future__ import annotations

from typing import Any, NoReturn

from leeward.errors import Busy


class NoPool:
    most_sessions, most_jobs = 0, 4
    crowded = False
    late: Busy | None = None

    @property
    def ledger(self) -> Any:
        return self

    admission = ledger

    def refusal(self, user: int, connection: int, now: float) -> Busy | None:
        return self.late

    def connection_closed(self, connection: int) -> None:
        pass

    def shed(self, *_args: Any) -> NoReturn:
        raise AssertionError("there is no fast path here")

    def job_started(self, *_args: Any) -> NoReturn:
        raise AssertionError("there is no fast path here")

    def open_session(self, *_args: Any, **_options: Any) -> Any:
        raise Busy("there are no sessions here")

    def open_seat(self, *_args: Any, **_options: Any) -> Any:
        raise Busy("there are no sandboxes here")
