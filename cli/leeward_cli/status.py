"""The daemon's status as text."""

from __future__ import annotations

from typing import Any


def status_text(status: dict[str, Any]) -> str:
    lines = []
    for name in ("workers", "jobs"):
        counts = status.get(name, {})
        lines.append(f"{name:<15} {', '.join(f'{count} {what}' for what, count in counts.items())}")
    lines.append("layers")
    for layer, about in status.get("layers", {}).items():
        details = ", ".join(f"{key} {_detail(value)}" for key, value in about.items() if key != "state")
        lines.append(f"  {layer:<13} {about.get('state', '?')}{f' ({details})' if details else ''}")
    lines.append(f"{'degraded':<15} {', '.join(status.get('degraded', [])) or 'nothing'}")
    lines.extend(map(_pool, status.get("pools", [])))
    shown = ("workers", "jobs", "layers", "degraded", "pools", "environments")
    for key, value in status.items():
        if key not in shown:
            lines.append(f"{key.replace('_', ' '):<15} {f'{value:.1f} s' if key == 'uptime' else _detail(value)}")
    lines.extend(_environments(status.get("environments") or {}))
    return "\n".join(lines) + "\n"


def _pool(pool: dict[str, Any]) -> str:
    workers, jobs = pool.get("workers", {}), pool.get("jobs", {})
    name = " ".join(filter(None, (pool.get("profile"), pool.get("environment"))))
    return (f"{'pool':<15} {name}: {workers.get('total', '?')} workers, {workers.get('busy', '?')} busy,"
            f" {pool.get('sessions', 0) + pool.get('sandboxes', 0)} of {pool.get('max_sessions', '?')} sessions and"
            f" sandboxes,"
            f" {jobs.get('done', '?')} jobs done, {pool.get('memory', 0) / (1 << 20):.1f} MiB,"
            f" unused for {pool.get('unused', 0.0):.0f} s, snapshot {pool.get('snapshot', '?')}")


def _environments(about: dict[str, Any]) -> list[str]:
    rows = {**about, **({"size": f"{about['size'] / (1 << 30):.1f} GiB at most"} if "size" in about else {}),
            **({"version": ".".join(map(str, about["version"]))} if "version" in about else {})}
    return ["environments", *(f"  {key:<13} {value or 'none'}" for key, value in rows.items())] if rows else []


def _detail(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {item}" for key, item in value.items()) or "none"
    return str(value)
