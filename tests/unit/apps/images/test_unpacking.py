"""Unpacking writes below its folder and nowhere else, whatever the layer says."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.images import Row, file, folder, hard, layer, link
from leeward.apps.images.streams import PIECE, BadImage, ImageBounds, Plain
from leeward.apps.images.unpacking import OPAQUE, Unpacked, unpack

FEW = ImageBounds(size=1 << 20, names=100, depth=20)


def unpacked(data: bytes, to: Path, bounds: ImageBounds = FEW) -> Unpacked:
    to.mkdir(exist_ok=True)
    fd = os.open(to, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return unpack(Plain(io.BytesIO(data), bounds), fd, bounds)
    finally:
        os.close(fd)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the one that is unpacked into, which no layer may change."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "secret").write_text("secret")
    return made


def state(path: Path) -> list[tuple[str, int, int, bytes]]:
    return [(str(each), each.lstat().st_mode, each.lstat().st_nlink, each.read_bytes() if each.is_file() else b"")
            for each in [path, *sorted(path.rglob("*"))]]


def hostile(outside: Path) -> dict[str, tuple[Row, ...]]:
    where, up = str(outside), "../outside"
    return {
        "dot dot": (file("../outside/new"),),
        "dot dot within": (folder("a"), file("a/../../outside/new")),
        "absolute": (file(f"{where}/new"),),
        "through an absolute link": (link("a", where), file("a/new")),
        "through a relative link": (link("a", up), file("a/new")),
        "through two links": (link("a", "b"), link("b", where), file("a/new")),
        "over a link to a file": (link("a", f"{where}/secret"), file("a", b"changed")),
        "a hard link to the host's": (hard("a", f"{where}/secret"), file("a", b"changed")),
        "a hard link with dot dot": (hard("a", f"{up}/secret"),),
        "a hard link through a link": (link("a", where), hard("b", "a/secret")),
        "a hard link to a link": (link("a", f"{where}/secret"), hard("b", "a"), file("b", b"changed")),
        "a whiteout through a link": (link("a", where), file("a/.wh.secret")),
        "an opaque mark through a link": (link("a", where), file("a/.wh..wh..opq")),
        "a whiteout of dot dot": (file("a/.wh..."),),
        "a whiteout of dot": (file("a/.wh.."),),
        "a whiteout of nothing": (file("a/.wh."),),
        "the mode of a link's target": (link("a", where), folder("a", mode=0o777)),
        "the mode of a link's target, later": (folder("a", mode=0o777), link("a", where)),
        "a folder that becomes a link": (folder("a/b"), file("a/b/c"), link("a/b", where), file("a/b/new")),
        "a cached folder that becomes a link": (folder("a"), file("a/c"), link("a", where), file("a/new")),
        "a loop": (link("a", "b"), link("b", "a"), file("a/new")),
        "links of /proc": (link("a", "/proc/self/root"), file(f"a{where}/new")),
        "deep": tuple(folder("/".join("d" * (each + 1))) for each in range(30)),
        "a device": (("sda", tarfile.BLKTYPE, {"devmajor": 8, "devminor": 0, "mode": 0o666}),),
        "a longer name than names are": (file("a" * 300),),
        "NUL in a name": (file("a\0b" + "c" * 200),),
        "an empty link": (link("a", ""),),
        "a negative time": (file("a", mtime=-1.5), folder("b", mtime=1e30)),
        "an unknown type": (("a", b"Z", {}),),
    }


@pytest.mark.parametrize("name", hostile(Path("/nowhere")))
def test_nothing_outside_changes(name: str, tmp_path: Path, outside: Path) -> None:
    before = state(outside)
    rows = hostile(outside)[name]

    with contextlib.suppress(BadImage):
        unpacked(layer(*rows), tmp_path / "root")

    assert before == state(outside)
    for each in (tmp_path / "root").rglob("*"):
        assert not stat.S_ISBLK(each.lstat().st_mode)
        assert each.is_symlink() or not each.exists() or each.lstat().st_ino != (outside / "secret").lstat().st_ino


def test_the_attacks_are_real(tmp_path: Path, outside: Path) -> None:
    """Control: tarfile's own extraction, trusted, writes through a link."""
    with tarfile.open(fileobj=io.BytesIO(layer(link("a", str(outside)), file("a/new", b"x")))) as archive:
        archive.extraction_filter = lambda member, _: member  # Python before 3.11.4 has no filter
        archive.extractall(tmp_path / "root")

    assert (outside / "new").exists()


@pytest.mark.parametrize(("rows", "why"), [
    ((file("../a"),), "is no path in a layer"), ((hard("a", "b"),), "no such file"), ((file("a/.wh.."),), "stands for no"),
    ((("a", b"Z", {}),), "unknown type"), ((link("a", "b"), file("a/x")), "can't be unpacked"),
    ((file("a" * 300),), "longer than a path"), ((file("a"), file("a/b")), "can't be unpacked"),
    (tuple(file(str(each)) for each in range(101)), "more names than the 100"),
    (tuple(file(f"{each}{'/d' * 18}/f") for each in range(6)), "more names than the 100"),  # of folders above them
    (tuple(file(str(each), b"x" * 8193) for each in range(95)), "takes more than 1048576 bytes")])
def test_what_is_refused_says_why(rows: tuple[Row, ...], why: str, tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=why):
        unpacked(layer(*rows), tmp_path / "root")


def test_what_layers_have(tmp_path: Path) -> None:
    """Links replaced by files, folders by links, names twice, whiteouts, modes, times, holes, names of any bytes."""
    root = tmp_path / "root"
    data = b"a" * 5000 + bytes(3 * PIECE) + b"b"
    done = unpacked(layer(
        folder(".", mode=0o750, mtime=5), folder("usr", mode=0o555, mtime=7), file("usr/x", b"x", mode=0o4755, mtime=9),
        link("bin", "usr"), file("bin/y", b"y"), link("a", "/usr/x"), file("a", b"file"), folder("d"), file("d/e", b"e"),
        link("d", "usr"), file("twice", b"1"), file("twice", b"2"), hard("same", "/usr/x"), file("gone/.wh.f"),
        folder("o"), file("o/.wh..wh..opq"), file("big", data), file("b\udcffytes", b"z"), file("made/in/between"),
        ("pipe", tarfile.FIFOTYPE, {"mode": 0o600}), ("null", tarfile.CHRTYPE, {"devmajor": 1, "devminor": 3}),
        file("closed", b"!", mode=0), file(".wh.usr/a"), file("o/.wh..wh..opq/a/b")), root, ImageBounds(size=1 << 23))

    assert (0o750, 5) == (stat.S_IMODE(root.stat().st_mode), int(root.stat().st_mtime))
    assert (0o555, 7) == (stat.S_IMODE((root / "usr").stat().st_mode), int((root / "usr").stat().st_mtime))
    assert (0o755, 9) == (stat.S_IMODE((root / "usr/x").stat().st_mode), int((root / "usr/x").stat().st_mtime))
    assert b"y" == (root / "usr/y").read_bytes()
    assert b"file" == (root / "a").read_bytes()
    assert not (root / "a").is_symlink()
    assert "usr" == os.readlink(root / "d")
    assert b"2" == (root / "twice").read_bytes()
    assert (root / "same").samefile(root / "usr/x")
    assert stat.S_ISCHR((root / "gone/f").lstat().st_mode)
    assert 0 == (root / "gone/f").lstat().st_rdev
    assert b"y" == os.getxattr(root / "o", OPAQUE)
    assert data == (root / "big").read_bytes()
    assert (root / "big").stat().st_blocks * 512 < len(data) // 2
    assert b"z" == (root / os.fsdecode(b"b\xffytes")).read_bytes()
    assert stat.S_ISFIFO((root / "pipe").lstat().st_mode)
    assert 0 == stat.S_IMODE((root / "closed").lstat().st_mode)
    assert {b"gone", b"made", b"made/in"} == done.implied
    assert {"set-id bits": 1, "devices": 1, "names in folders that begin with .wh.": 2} == done.left_out
    assert not (root / ".wh.usr").exists()
    assert [] == os.listdir(root / "o")


def test_a_folder_over_a_whiteout_covers_what_is_below(tmp_path: Path) -> None:
    unpacked(layer(file(".wh.a"), folder("a"), folder("b"), file(".wh.b"), file("c"), file(".wh.c")), tmp_path / "root")

    assert b"y" == os.getxattr(tmp_path / "root/a", OPAQUE)
    assert b"y" == os.getxattr(tmp_path / "root/b", OPAQUE)
    assert (tmp_path / "root/c").is_file()


@pytest.mark.parametrize("data", [
    layer(file("a", size=1 << 40)),  # says so
    layer(file("a", bytes(2 << 20))),  # is so
    gzip.compress(bytes(4 << 20)), bz2.compress(bytes(4 << 20)), lzma.compress(bytes(4 << 20))],
    ids=["said", "plain", "gzip", "bzip2", "xz"])
def test_too_many_bytes_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadImage, match=r"more than|ends early|no tar"):
        unpacked(data, tmp_path / "root")

    assert sum(each.stat().st_size for each in (tmp_path / "root").rglob("*")) <= 1 << 20


def test_headers_that_only_take_memory_are_refused(tmp_path: Path) -> None:
    """A list of holes without an end, and headers for all members, which tarfile keeps."""
    holes = layer(("a", tarfile.REGTYPE, {"data": b"900000\n" + b"300\n" * 400_000, "pax_headers": {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a", "GNU.sparse.realsize": "1"}}))
    every = b"".join(tarfile.TarInfo.create_pax_global_header({f"{each}": "x" * 30_000}) + layer(file(f"{each}"))[:512]
                     for each in range(3))
    for data, why in ((holes, "headers longer than 1048576 bytes"), (every, "for all members longer than 65536 bytes")):
        with pytest.raises(BadImage, match=why):
            unpacked(data, tmp_path / "root", ImageBounds(size=1 << 23))


@pytest.mark.parametrize("body", [
    b"1" * 900_000, b"3 a" * 300_000 + b"=", b"900000 comment=" + b"1" * 899_984 + b"\n", b"9 a=b", b"7 a b\n\0", b"0 a=b\n",
    b"-6 a=b\n"], ids=["digits", "no records", "a long number", "too long", "no value", "nothing", "negative"])
def test_extended_headers_that_take_time_are_refused(body: bytes, tmp_path: Path) -> None:
    """At once: tarfile takes a quarter of an hour for the first of them."""
    head = tarfile.TarInfo("head")
    head.type, head.size = tarfile.XHDTYPE, len(body)
    with pytest.raises(BadImage, match="extended header that is broken"):
        unpacked(head.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512) + layer(file("a")), tmp_path / "root")


def test_data_that_looks_like_a_header_hides_none(tmp_path: Path) -> None:
    """The block with a sparse file's holes, of which tarfile reads more than the list."""
    looks = b"0\n".ljust(156, b"\0") + tarfile.GNUTYPE_LONGNAME + bytes(355)
    sparse = layer((".wh.a", tarfile.REGTYPE, {"data": looks, "pax_headers": {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0"}}))
    head = tarfile.TarInfo("head")
    head.type, head.size = tarfile.XHDTYPE, 100_352
    data = sparse[:2048] + head.tobuf(tarfile.USTAR_FORMAT) + b"1" * head.size
    with pytest.raises(BadImage, match="extended header that is broken"):
        unpacked(data, tmp_path / "root")


def test_a_ratio_is_refused(tmp_path: Path) -> None:
    """256 MiB of zeros in 256 KiB."""
    bomb = b"".join(gzip.compress(bytes(64 << 20)) for _ in range(4))

    with pytest.raises(BadImage, match="200 times its size"):
        Plain(io.BytesIO(bomb), ImageBounds()).drain()


def test_members_of_gzip_are_one_layer(tmp_path: Path) -> None:
    data = layer(file("a", b"x" * 5000))
    pieces = gzip.compress(data[:700]) + gzip.compress(data[700:]) + bytes(512)

    unpacked(pieces, tmp_path / "root")

    assert b"x" * 5000 == (tmp_path / "root/a").read_bytes()


@pytest.mark.parametrize("data", [
    b"", b"x" * 512, layer(file("a"))[:300], gzip.compress(layer(file("a")))[:-9], b"\x1f\x8b" + bytes(100),
    layer(file("a", b"x" * 600))[:1100], layer(file("a")).replace(b"ustar", b"USTAR", 1),
    layer(file("a"))[:512] + b"y" * 512, layer(("L", b"L", {"data": b"x" * (2 << 20)}))],
    ids=["empty", "nonsense", "cut header", "cut gzip", "no gzip", "cut file", "a sum", "a second header", "a long header"])
def test_broken_archives_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadImage):
        unpacked(data, tmp_path / "root", ImageBounds(size=1 << 23))


_NAMES = st.sampled_from(["a", "b", "a/b", "a/b/c", "b/c", ".wh.a", "a/.wh.b", "a/.wh..wh..opq", "./a", "/a", "a/", "."])
_ROWS = st.one_of(st.builds(file, _NAMES, st.sampled_from([b"", b"x"])), st.builds(folder, _NAMES, mode=st.just(0o700)),
                  st.builds(link, _NAMES, _NAMES), st.builds(hard, _NAMES, _NAMES),
                  st.builds(link, _NAMES, st.sampled_from(["../outside", "/outside", "..", "/", "/proc/self/cwd"])))


@pytest.mark.thorough
@settings(max_examples=400, deadline=None)
@given(st.lists(_ROWS, max_size=12))
def test_any_layer_gives_files_below_or_its_error(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    at = tmp_path_factory.mktemp("any")
    (at / "outside").mkdir()

    with contextlib.suppress(BadImage):
        unpacked(layer(*rows), at / "root")

    assert ["outside", "root"] == sorted(os.listdir(at))
    assert [] == os.listdir(at / "outside")
