"""`leeward image`: a store of one's own, by the command line."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
from pathlib import Path

import httpx2
import pytest

from kit import registry
from kit.images import file, folder, layer, oci
from kit.live_daemon import command, environment
from kit.loopback import free_port
from kit.waiting import poll_until


@pytest.fixture
def config(tmp_path: Path) -> Path:
    made = tmp_path / "config.toml"
    made.write_text(f'images_folder = "{tmp_path}/images"\nimages_size = "4M"\n')
    return made


def image(config: Path, *words: str, fails: bool = False) -> str:
    done = subprocess.run(command("image", *words, "--config", str(config)), env=environment(), capture_output=True,
                          text=True, check=False)
    assert fails is bool(done.returncode), done.stderr
    return done.stderr if fails else done.stdout


def test_import_list_show_export_remove_and_prune(tmp_path: Path, config: Path) -> None:
    source = oci(tmp_path / "oci", [layer(folder("etc"), file("etc/passwd", b"me:x:7:8::/home/me:/bin/sh\n"))],
                 {"User": "me", "Env": ["A=1"]})

    said = image(config, "import", str(source), "--name", "one")
    [row] = json.loads(image(config, "list", "--json"))
    shown = json.loads(image(config, "show", "one", "--json"))
    image(config, "export", "one", str(tmp_path / "out.tar"))
    image(config, "import", str(tmp_path / "out.tar"), "--name", "two")
    image(config, "remove", "one")

    assert said.startswith("one: 1 layers, 0.0 MiB")
    assert ("one", 1) == (row["name"], row["layers"])
    assert (7, 8, "/home/me", ["A=1"]) == (shown["uid"], shown["gid"], shown["home"], shown["env"])
    assert "two" in image(config, "list")
    assert image(config, "prune").startswith("1 layers removed")


def test_what_nobody_may_read_is_exported(tmp_path: Path, config: Path) -> None:
    """By an ordinary user, too, whose files these are."""
    source = oci(tmp_path / "oci", [layer(folder("etc"), file("etc/shadow", b"x", mode=0), folder("shut", mode=0),
                                          folder("shut/in"), file("shut/in/file", b"y"))])
    image(config, "import", str(source), "--name", "one")
    image(config, "export", "one", str(tmp_path / "out.tar"))
    image(config, "import", str(tmp_path / "out.tar"), "--name", "two")

    [digest] = json.loads(image(config, "show", "two", "--json"))["layers"]
    made = tmp_path / "images/layers" / digest
    assert (0, 0) == (stat.S_IMODE((made / "etc/shadow").stat().st_mode), stat.S_IMODE((made / "shut").stat().st_mode))
    for each in json.loads(image(config, "list", "--json")):
        image(config, "remove", each["name"])
    assert image(config, "prune").startswith("2 layers removed")


def test_pull(tmp_path: Path, config: Path) -> None:
    with registry.serving() as served:
        served.fill(tmp_path / "oci", [layer(folder("etc"))])
        said = image(config, "pull", f"{served.host}/some/thing:1")
        assert "names no image" in image(config, "pull", "a:b:c", fails=True)
        assert "can't be an image's name" in image(config, "pull", f"{served.host}/7", fails=True)

    assert said.startswith("thing: 1 layers")
    assert f"{served.host}/some/thing:1" == json.loads(image(config, "show", "thing", "--json"))["source"]


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return not connection.connect_ex(("127.0.0.1", port))


@pytest.mark.needs("debian-docker-registry")
def test_pull_from_debians_registry(tmp_path: Path, config: Path) -> None:
    """What is pushed into it as the protocol says comes back with its digests: as a tag and by the digest."""
    source = oci(tmp_path / "oci", [layer(folder("etc")), layer(file("app", b"x" * 100_000))], {"User": "7"})
    [row] = json.loads((source / "index.json").read_text())["manifests"]
    port = free_port()
    (tmp_path / "registry.yml").write_text(f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
                                           f'http: {{addr: "127.0.0.1:{port}"}}\n')
    base = f"http://127.0.0.1:{port}/v2/some/box"
    with subprocess.Popen(["docker-registry", "serve", tmp_path / "registry.yml"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as server:
        try:
            poll_until(lambda: answers(port), "a program of others listens")
            for blob in (source / "blobs/sha256").iterdir():
                to = httpx2.post(f"{base}/blobs/uploads/").headers["location"]
                httpx2.put(f"{to}&digest=sha256:{blob.name}", content=blob.read_bytes()).raise_for_status()
            manifest = (source / "blobs/sha256" / row["digest"].partition(":")[2]).read_bytes()
            httpx2.put(f"{base}/manifests/1", content=manifest,
                       headers={"content-type": "application/vnd.oci.image.manifest.v1+json"}).raise_for_status()
            assert image(config, "pull", f"127.0.0.1:{port}/some/box:1").startswith("box: 2 layers")
            assert image(config, "pull", f"127.0.0.1:{port}/some/box@{row['digest']}").startswith("box: 2 layers")
        finally:
            server.terminate()
    assert 7 == json.loads(image(config, "show", "box", "--json"))["uid"]


def test_what_is_refused(tmp_path: Path, config: Path) -> None:
    (tmp_path / "nonsense").write_bytes(b"no archive")
    bomb = oci(tmp_path / "oci", [layer(file("zeros", bytes(5 << 20)))])

    assert "no tar archive" in image(config, "import", str(tmp_path / "nonsense"), "--name", "a", fails=True)
    assert "more than 4194304 bytes" in image(config, "import", str(bomb), "--name", "a", fails=True)
    assert "can't be an image's name" in image(config, "import", str(bomb), "--name", "../a", fails=True)
    assert "there is no image 'a'" in image(config, "show", "a", fails=True)
    assert "[]" == image(config, "list", "--json").strip()
