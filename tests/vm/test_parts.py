"""The parts of the machine that need none: archives, kernels, reports, the table."""

from __future__ import annotations

import lzma
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from vm import report, rows, table
from vm.archive import Archive
from vm.kernels import KERNELS, Unavailable, elf_of
from vm.report import Report
from vm.rows import Row


def entries(data: bytes) -> list[tuple[str, int, bytes]]:
    """Name, mode and content of each, as the kernel's unpacker goes through them."""
    found: list[tuple[str, int, bytes]] = []
    at = 0
    while True:
        assert b"070701" == data[at:at + 6]
        fields = [int(data[at + 6 + 8 * number:at + 14 + 8 * number], 16) for number in range(13)]
        name = data[at + 110:at + 110 + fields[11] - 1].decode()
        at += 110 + fields[11] + -(110 + fields[11]) % 4
        if "TRAILER!!!" == name:
            assert len(data) == at
            return found
        found.append((name, fields[1], data[at:at + fields[6]]))
        at += fields[6] + -fields[6] % 4


def test_an_archive_has_the_files_that_were_put_into_it() -> None:
    archive = Archive()
    archive.folder("bin")
    archive.file("bin/a", b"12345", 0o755)
    archive.link("bin/b", "a")
    archive.device("console", 5, 1)

    assert [("bin", stat.S_IFDIR | 0o755, b""), ("bin/a", stat.S_IFREG | 0o755, b"12345"),
            ("bin/b", stat.S_IFLNK | 0o777, b"a"), ("console", stat.S_IFCHR | 0o600, b"")] == entries(archive.whole())


def image(packed: bytes) -> bytes:
    """A bzImage of four boot sectors and some code before what is packed."""
    head = bytearray(5 * 512 + 100)
    head[0x1F1] = 4
    head[0x248:0x250] = struct.pack("<II", 100, len(packed) + 4)
    return bytes(head) + packed + b"size" + b"and more"


def test_an_image_is_unpacked() -> None:
    assert b"\x7fELF and so on" == elf_of(image(lzma.compress(b"\x7fELF and so on")))


def test_an_image_that_is_packed_by_something_new_is_none() -> None:
    with pytest.raises(Unavailable, match="begins with 1f8b08"):
        elf_of(image(b"\x1f\x8b\x08 gzip's"))


XML = b"""<testsuites><testsuite>
<testcase classname="tests.vm.test_layers" name="test_a"/>
<testcase classname="tests.vm.test_layers" name="test_b"><skipped message="needs it"/></testcase>
<testcase classname="tests.integration.test_x" name="test_c[v2]"><failure>no</failure></testcase>
<testcase classname="tests.integration.test_x" name="test_d"><error>no</error></testcase>
</testsuite></testsuites>"""

FEATURES = (b'{"features": [{"name": "landlock", "state": "missing", "have": "none", "without": "", "cure": ""},'
            b' {"name": "cgroup", "state": "ok", "have": "driver v2: home /sys/x", "without": "", "cure": ""}]}')


STATUS = (b'{"transport": "socket", "layers": {"mounts": {"state": "active", "self_check": "/ is read-only"},'
          b' "landlock": {"state": "missing", "abi": 0}, "cgroup": {"state": "degraded", "driver": "none"},'
          b' "seccomp": {"state": "active", "self_check": "chroot: EACCES"}}}')


def made() -> Report:
    return report.of(Row("5.10", user=True), "linux-image-5.10.0-1-cloud-amd64",
                     {report.TESTS: XML, report.FEATURES: FEATURES, report.STATUS: STATUS}, 12.34,
                     "0123456789abcdef+", "2026-11-29")


def test_a_report_counts_by_file() -> None:
    got = made()

    assert {"tests/vm/test_layers.py": {"passed": 1, "skipped": 1},
            "tests/integration/test_x.py": {"failed": 2}} == got.tests
    assert ("tests/integration/test_x.py::test_c[v2]", "tests/integration/test_x.py::test_d") == got.failed
    assert (1, 1, 2) == tuple(got.count(outcome) for outcome in ("passed", "skipped", "failed"))


def test_a_report_is_read_as_it_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RECORDED", tmp_path / "runs")

    report.record(made())

    assert [made()] == report.recorded()


def test_a_line_reports_the_active_layers() -> None:
    assert ("| 5.10.0-1 | a user | *`none`* | / is read-only | *missing* | chroot: EACCES, *not asked* | epoll |"
            " 1 | 1 | 2 | 01234567 and changes | 2026-11-29 |" == table.of([made()]).splitlines()[-1])


def test_a_release_needs_a_run_of_its_own_sources_in_every_row() -> None:
    """One that is missing, has failed tests, was of other sources or of a commit that is gone is named, with its command."""
    runs = {row.name: replace(made(), row=row, failed=(), commit="new") for row in rows.ALL}
    changed = {"new": [], "old": ["leeward/a.py"]}.get

    assert [] == report.not_for_release(runs.values(), changed)
    for change, why in (({"commit": "old"}, "1 files have changed since the run of 2026-11-29, of old"),
                        ({"commit": "gone"}, "the run of 2026-11-29 was of gone, which isn't in this repository"),
                        ({"commit": "new+"}, "the run of 2026-11-29 was of sources that no commit has"),
                        ({"commit": ""}, "the run of 2026-11-29 was of sources that no commit has"),
                        ({"failed": ("a", "b")}, "2 tests failed")):
        bad = {**runs, "6.1-user-systemd": replace(runs["6.1-user-systemd"], **change)}
        assert ([f"6.1-user-systemd: {why}: ./dev vm --kernel 6.1 --user --systemd --record"] ==
                report.not_for_release(bad.values(), changed))
    del runs["6.12-root"]
    assert (["6.12-root: no run is recorded: ./dev vm --kernel 6.12 --record"] ==
            report.not_for_release(runs.values(), changed))


def test_documents_are_no_sources() -> None:
    """Of what git lists: the recorded runs themselves are kept after the commit that they are of."""
    assert report.changed_since("no-such-commit") is None
    assert not [path for path in report.changed_since("HEAD") or () if path.startswith("docs/") or path.endswith(".md")]


def test_every_row_has_a_kernel() -> None:
    assert {row.kernel for row in (*rows.ALL, *rows.CI)} == set(KERNELS)
    assert len({row.name for row in rows.ALL}) == len(rows.ALL) == 16
