"""What a limit that was reached means, and the options that raise it."""

from __future__ import annotations

#: For each limit of outcome.Limit, a text about reaching it, and the options that raise it. exec_job.c has the same.
LIMITS = {
    "time": ("its time was up", "--timeout SECONDS, timeout= in Python"),
    "memory": ("its processes and files have reached the memory limit", "--memory SIZE, memory= in Python"),
    "output": ("it wrote more to stdout and stderr than its limit allows", "--output SIZE, output= in Python"),
    "processes": ("it had as many processes and threads as its limit allows, and was refused another one",
                  "--processes NUMBER, processes= in Python"),
    "files": ("its writable folders were full",
              "--files SIZE and --memory, files= of Sandbox in Python; for jobs [limits] of the configuration"),
    "descriptors": ("a process had as many open descriptors as its limit allows",
                    "--descriptors NUMBER, descriptors= in Python"),
    "cpu": ("it has used its processor time", "cpu_time= in Python"),
}


def hint(limit: str | None) -> str:
    """One line about *limit*, and the options that raise it; "" if there is none."""
    if limit not in LIMITS:
        return ""
    why, cure = LIMITS[limit]
    return f"limit {limit}: {why}; to allow more: {cure}"
