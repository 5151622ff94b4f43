"""
Another network, in which a daemon can run as on another machine: a namespace with a cable to this one.

Runs in:   the tests, as root.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType


class FarNetwork:
    """
    Attributes:
        address: where this side reaches what runs there.
        enter: the beginning of a command line that runs there. Only its network is another one: `ip netns exec` would mount
            /sys anew, without the daemon's cgroups.
    """

    enter: tuple[str, ...]

    def __init__(self) -> None:
        number = os.getpid() % 16_384  # of 198.18.0.0/16, which is for tests (RFC 2544), so that several can run at once
        self._cable = f"lw{os.getpid()}"
        self._here, self.address = (f"198.18.{number >> 6}.{(number & 63) * 4 + last}" for last in (1, 2))

    def __enter__(self) -> FarNetwork:
        # The namespace is its first process's, which ends with this one, however that ends. A name would stay.
        self._first = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
        self.enter = ("nsenter", f"--net=/proc/{self._first.pid}/ns/net")
        assert self._first.stdin is not None
        assert self._first.stdout is not None
        try:
            assert b"\n" == self._first.stdout.readline()
            _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "far0", "netns", str(self._first.pid))
            _run("ip", "address", "add", f"{self._here}/30", "dev", self._cable)
            _run("ip", "link", "set", self._cable, "up")
            for words in (("address", "add", f"{self.address}/30", "dev", "far0"), ("link", "set", "far0", "up"),
                          ("link", "set", "lo", "up")):
                _run(*self.enter, "ip", *words)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _run("ip", "link", "delete", self._cable)  # else its name would be taken until the kernel has removed the namespace
        self._end()

    def _end(self) -> None:
        with self._first:  # closes the pipes, and waits
            pass


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)


def certificate(folder: Path, *names: str) -> None:
    """Make cert.pem and key.pem for *names* (DNS:... or IP:...) in *folder*, and their authority's ca.pem."""
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
    openssl("req", "-x509", *key, "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=a test's")
    openssl("req", *key, "key.pem", "-out", "csr", "-subj", "/CN=localhost")
    (folder / "more").write_text(f"subjectAltName={','.join(names)}\nbasicConstraints=CA:FALSE\n")
    openssl("x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2", "-extfile", "more",
            "-out", "cert.pem")
