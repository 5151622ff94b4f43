"""What of other people's suites fails inside alone, each with its reason; of CPython's it is cpython_exceptions.py."""

from __future__ import annotations

import re

#: Suite, a regular expression for a whole unit, one for what fails and, on the lines behind, all output, and why.
ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("coreutils", r"tests/(chmod/setgid|install/install-C)\.sh", r"set-up failure|cannot change permissions of 'b'",
     "set-id bits are refused"),
    ("git", r"t(0001|1301|1700|4129|5324)-.*", r"^[^\n]*([sS]hared|forced modes|setgid|server-info|null sha1)",
     "set-id bits are refused, which shared folders have"),
    ("node", "parallel/test-child-process-uid-gid", r"spawn EINVAL",
     "setuid to an id that its user namespace doesn't map is EINVAL; the test wants EPERM"),
    ("node", r"parallel/test-fs-.*", r"ENOENT[^\n]*'/proc/sys/kernel/hostname'", "a job's /proc has no sys"),
    ("node", r"parallel/test-dgram-multicast-.*", r"setMulticast\w+ EACCES", "multicast is refused"),
    ("node", r"parallel/test-(dgram-udp6-link-local-address|inspector-ip-detection)", "skips itself",
     "the only interface is a loopback"),
    ("sqlite", r"mallocAll\.test", r"^altermalloc2-1-oom-persistent\.10\d",
     "it fails outside as well, by another number of allocations, which is in its name"),
)


def reason(suite: str, unit: str, failure: str, output: str) -> str:
    """Of the first row that fits; "" for none."""
    return next((why for name, units, sign, why in ROWS
                 if suite == name and re.fullmatch(units, unit) and re.search(sign, f"{failure}\n{output}")), "")
