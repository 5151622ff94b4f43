"""`leeward run`: one job without a daemon, with the same isolation, in this process, which does the daemon's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leeward.client.arena import map_arenas
from leeward.daemon import early
from leeward.daemon.config_sources import load
from leeward.daemon.pool.begin import Settings
from leeward.daemon.serving.intake import job_of
from leeward.wire.frames import HEADER, VERSION, decode
from leeward.wire.replies import parse_reply, parse_result
from leeward.wire.requests import Execute, parse_request
from leeward_cli import job
from leeward_cli.interrupts import INTERRUPTED, die_by
from leeward_cli.options import parse


def run(argv: Sequence[str]) -> int:
    """Run one job in a pool of one worker that exists only for this job. Returns the exit status."""
    parsed = parse("run", argv)
    # Parsed as in the daemon, so that both refuse the same requests.
    request = parse_request({"v": VERSION, "id": 1, "op": "execute", **job.request(parsed)})
    assert isinstance(request, Execute)
    overrides: dict[str, Any] = {}
    if parsed.values("--allow-degraded"):
        overrides["allow_degraded"] = parsed.values("--allow-degraded")
    config = load(parsed.value("--config"), overrides)
    one = job_of(request, config, config.limits)
    # No warm-up, no rehearsal and no spare runners, because there is only one job.
    settings = Settings(pool_size=1, spares=0, recycle_after=1, queue_size=1, limits=config.limits,
                        python_env=config.python_env, preload=config.preload, allow_degraded=config.allow_degraded,
                        rehearse=False, warm=False, sandboxes=False, loopback=config.loopback,
                        terminal=config.terminal, pinned=config.pinned)
    bootstrap = early.start(settings)
    try:
        # Imported while the zygote starts.
        from leeward.daemon.serving.parcel import pack
        from leeward_cli.live_output import ShownOutput
        from leeward_cli.once import EndedBySignal, perform

        shown = None if parsed.flag("--json") else ShownOutput(parsed.flag("--raw"))
        try:
            report, killed = perform(one, settings, bootstrap, shown)
        except EndedBySignal as end:
            return die_by(str(end))
    finally:
        bootstrap.close()
    if report.refusal is not None:
        raise report.refusal
    parcel = pack(1, report)
    # The answer is encoded and decoded as for a client, so that `run` and `exec` can't differ.
    reply = parse_reply(decode(bytes(parcel.frame[HEADER:])))
    arenas = map_arenas([arena.fd for arena in parcel.arenas], reply.arenas)
    status = job.show(parse_result(reply), arenas, parsed, shown)
    return INTERRUPTED if killed else status
