"""
leeward runs untrusted Python code in warm, fully confined processes.

    import leeward

    with leeward.Client() as client:
        print(client.execute("print('hello')").stdout_text)

Every name is imported when it is first used: the processes of the daemon import parts of
this package, and pay only for those.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # see wire/frames.py
if TYPE_CHECKING:
    from leeward.client.aio import AsyncClient as AsyncClient
    from leeward.client.aio_session import AsyncSession as AsyncSession
    from leeward.client.blocking import Client as Client
    from leeward.client.session import Session as Session
    from leeward.errors import BadReply as BadReply
    from leeward.errors import Busy as Busy
    from leeward.errors import Cancelled as Cancelled
    from leeward.errors import DaemonAway as DaemonAway
    from leeward.errors import DaemonError as DaemonError
    from leeward.errors import Forbidden as Forbidden
    from leeward.errors import LeewardError as LeewardError
    from leeward.errors import NoAnswer as NoAnswer
    from leeward.errors import QueueTimeout as QueueTimeout
    from leeward.errors import Refused as Refused
    from leeward.errors import RequestRejected as RequestRejected
    from leeward.errors import SessionOver as SessionOver
    from leeward.errors import ShuttingDown as ShuttingDown
    from leeward.errors import VersionMismatch as VersionMismatch
    from leeward.outcome import JobError as JobError
    from leeward.outcome import Limit as Limit
    from leeward.outcome import Outcome as Outcome
    from leeward.outcome import Result as Result

__all__ = [
    "AsyncClient", "AsyncSession", "BadReply", "Busy", "Cancelled", "Client", "DaemonAway", "DaemonError", "Forbidden",
    "JobError", "LeewardError", "Limit", "NoAnswer", "Outcome", "QueueTimeout", "Refused", "RequestRejected", "Result",
    "Session", "SessionOver", "ShuttingDown", "VersionMismatch",
]

_HOMES = {
    **dict.fromkeys(__all__, "leeward.errors"),
    **dict.fromkeys(("JobError", "Limit", "Outcome", "Result"), "leeward.outcome"),
    "AsyncClient": "leeward.client.aio",
    "AsyncSession": "leeward.client.aio_session",
    "Client": "leeward.client.blocking",
    "Session": "leeward.client.session",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'leeward' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
