"""One line of advice about a result: a limit, a package that is missing, or a folder that can't be renamed."""

from __future__ import annotations

import errno
import sys

#: For each limit of outcome.Limit, a text about reaching it, and the options that raise it.
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

#: About a module that isn't there. It doesn't name it: the job has chosen the name, and this is our advice to install.
MISSING = ("a module is missing; for one of a package: an environment that has it (--environment NAME, environment= in"
           " Python), or --package NAME, packages= in Python; where no package index is allowed: `leeward env setup`")

_SAYS, _ENDS = "No module named '", "'"

#: About a rename that the kernel refuses: overlayfs as an ordinary user mounts it can't tell where a folder was.
NOT_RENAMED = ("rename(2) leads from one file system to another, or is of one of the host's folders in an overlay: there"
               " `mv` and shutil.move copy; in place of `git mv A B`: `mv A B && git add -A A B`")
#: How programs say that: by the C library's text (glibc, musl), Go's with a small letter, or Node's with the name.
_EXDEV = (b"ross-device link", b"'EXDEV'")
#: Bytes at the end of stderr in which a program says why it has ended.
_LAST = 1000


def hint(limit: str | None, error: tuple[str, str] | None = None, stderr: bytes = b"") -> str:
    """
    One line about *limit*; about the job's *error* (type and message) if that is a missing package or a refused rename,
    or the latter is in the *stderr* of a program that has failed; otherwise "".
    """
    if limit in LIMITS:
        why, cure = LIMITS[limit]
        return f"limit {limit}: {why}; to allow more: {cure}"
    if any(text in stderr[-_LAST:] for text in _EXDEV) or (
            error is not None and error[0] == "OSError" and error[1].startswith(f"[Errno {errno.EXDEV}] ")):
        return NOT_RENAMED
    return MISSING if error is not None and _lacks_package(*error) else ""


def _lacks_package(kind: str, message: str) -> bool:
    """Whether no module was found, as the interpreter says it; not for the standard library's, which no package has."""
    if kind != "ModuleNotFoundError" or not message.startswith(_SAYS) or not message.endswith(_ENDS):
        return False
    parts = message[len(_SAYS):-len(_ENDS)].split(".")
    return parts[0] not in sys.stdlib_module_names and all(part.isidentifier() for part in parts)
