"""Images are pulled from a registry that is right, that wants to know who asks, and that lies."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import registry
from kit.images import file, folder, layer
from leeward.apps.images.registry import Reference, pull, reference
from leeward.apps.images.store import Images, ImportProgress
from leeward.apps.images.streams import BadImage, ImageBounds
from leeward.errors import BadRequest, LeewardError, Unsupported

LAYERS = [layer(folder("etc"), file("etc/motd", b"hello")), layer(file("app", b"program" * 1000))]
LOGIN = "Basic " + base64.b64encode(b"me:secret").decode()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[registry.Registry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with registry.serving() as made:
        made.fill(tmp_path / "oci", LAYERS, config={"User": "7"})
        yield made


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[registry.Registry]:
    """Where blobs are redirected to: another port is another origin."""
    with registry.serving() as made:
        made.fill(tmp_path / "elsewhere", LAYERS, config={"User": "7"})
        yield made


def known(tmp_path: Path, host: str, **more: object) -> None:
    """As `docker login` leaves it."""
    auths = {host: {"auth": LOGIN.removeprefix("Basic ")}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths, **more}))


def pulled(tmp_path: Path, text: str, mirror: str = "") -> str:
    """What the pulled image's files say."""
    store = Images(str(tmp_path / "store"))
    with pull(reference(text), mirror) as found:
        made, _ = store.add("image", found, text, ImportProgress(), ImageBounds())
    assert "7" == made.config.user
    return Path(store.folder, "layers", made.layers[0], "etc/motd").read_text()


@pytest.mark.parametrize(("text", "wanted"), [
    ("debian", Reference("docker.io", "library/debian", "latest")),
    ("debian:12", Reference("docker.io", "library/debian", "12")),
    ("docker.io/a/b", Reference("docker.io", "a/b", "latest")),
    ("a/b:c", Reference("docker.io", "a/b", "c")),
    ("localhost/b", Reference("localhost", "b", "latest")),
    ("ghcr.io/a/b/c:v1.2", Reference("ghcr.io", "a/b/c", "v1.2")),
    ("127.0.0.1:5000/x", Reference("127.0.0.1:5000", "x", "latest")),
    (f"x.org/y@sha256:{'a' * 64}", Reference("x.org", "y", "latest", f"sha256:{'a' * 64}"))])
def test_a_reference_is_read_as_docker_does(text: str, wanted: Reference) -> None:
    assert wanted == reference(text)


@pytest.mark.parametrize("text", ["", "Debian", "a:", "a@", "a@md5:1", "x.org/", "x.org/../y", "a b", "a?b", "a/b:c/d",
                                  "me@x.org/y", "x.org/y:../z", "http://x.org/y", "x.org:123456/y", "a\nb"])
def test_what_names_no_image_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="names no image"):
        reference(text)


def test_an_image_is_pulled(served: registry.Registry, tmp_path: Path) -> None:
    """By its tag, by its digest, and by an index for several machines; nobody asked, nobody is told who we are."""
    assert "hello" == pulled(tmp_path, f"{served.host}/some/thing:1")
    assert "hello" == pulled(tmp_path, f"{served.host}/some/thing@{served.top}")
    row = {"digest": served.top, "size": len(served.blobs[served.top])}
    other = {"digest": f"sha256:{'0' * 64}", "size": 1, "platform": {"os": "linux", "architecture": "pdp11"}}
    served.top = served.put(json.dumps({"manifests": [other, row]}).encode())
    assert "hello" == pulled(tmp_path, f"{served.host}/some/thing")

    assert {""} == {authorization for _, authorization, _ in served.asked}
    assert 2 == sum(path.startswith("/v2/some/thing/blobs/") for path, _, _ in served.asked) - 3  # layers once


def test_a_mirror_is_asked_instead(served: registry.Registry, tmp_path: Path) -> None:
    assert "hello" == pulled(tmp_path, "example.com/a/b", served.url)
    with pytest.raises(BadRequest, match="no mirror"):
        pulled(tmp_path, "example.com/a/b", "ftp://x.org")
    served.wants, served.accepts = 'Basic realm="x"', LOGIN
    with pytest.raises(BadRequest, match=f"docker login {served.host}"):
        pulled(tmp_path, "example.com/a/b", served.url)


def test_a_password_is_sent_to_who_asks(served: registry.Registry, tmp_path: Path) -> None:
    """And only after that; without one, the error names the command."""
    served.wants, served.accepts = 'Basic realm="x"', LOGIN
    with pytest.raises(BadRequest, match="docker login 127"):
        pulled(tmp_path, f"{served.host}/a")
    known(tmp_path, served.host)

    assert "hello" == pulled(tmp_path, f"{served.host}/a")


@pytest.mark.parametrize("has_login", [False, True])
def test_a_token_is_got_for_reading_this_repository(has_login: bool, served: registry.Registry, tmp_path: Path) -> None:
    """Whatever the registry would have it ask for."""
    served.wants = f'Bearer realm="{served.url}/token",service="it",scope="repository:other:push"'
    served.accepts = f"Bearer {registry.TOKEN}"
    if has_login:
        known(tmp_path, served.host)

    assert "hello" == pulled(tmp_path, f"{served.host}/a/b")
    [(path, authorization)] = [(path, sent) for path, sent, _ in served.asked if path.startswith("/token")]
    assert "/token?service=it&scope=repository%3Aa%2Fb%3Apull" == path
    assert (LOGIN if has_login else "") == authorization


def test_where_blobs_are_redirected_to_is_told_no_secret(served: registry.Registry, elsewhere: registry.Registry,
                                                         tmp_path: Path) -> None:
    served.wants, served.accepts, served.elsewhere = 'Basic realm="x"', LOGIN, elsewhere.url
    known(tmp_path, served.host)

    assert "hello" == pulled(tmp_path, f"{served.host}/a")
    assert len(elsewhere.asked) == 3
    assert {""} == {authorization for _, authorization, _ in elsewhere.asked}


@pytest.mark.parametrize("realm", ["{}/token", "https://192.0.2.1/token"])
def test_where_blobs_are_redirected_to_gets_no_password_by_asking(realm: str, served: registry.Registry, tmp_path: Path,
                                                                  elsewhere: registry.Registry) -> None:
    """Neither by itself nor through a server of tokens that it names: the registry alone names that."""
    served.elsewhere, elsewhere.wants = elsewhere.url, f'Bearer realm="{realm.format(elsewhere.url)}"'
    known(tmp_path, served.host)

    with pytest.raises(BadRequest, match="only to whom it knows"):
        pulled(tmp_path, f"{served.host}/a")
    assert {""} == {authorization for _, authorization, _ in (*served.asked, *elsewhere.asked)}
    assert [] == [path for path, _, _ in elsewhere.asked if path.startswith("/token")]


@pytest.mark.parametrize("to", ["http://192.0.2.1", "file:///etc/passwd?", "http://me:secret@127.0.0.1", "//["])
def test_a_redirect_to_anywhere_is_not_followed(to: str, served: registry.Registry, tmp_path: Path) -> None:
    served.elsewhere = to
    with pytest.raises(BadImage, match="redirects to where nothing is asked"):
        pulled(tmp_path, f"{served.host}/a")


def test_a_circle_of_redirects_ends(served: registry.Registry, tmp_path: Path) -> None:
    served.elsewhere = served.url
    with pytest.raises(BadImage, match="for ever"):
        pulled(tmp_path, f"{served.host}/a")


def test_a_blob_that_ends_early_goes_on_there(served: registry.Registry, tmp_path: Path) -> None:
    """A few times, and then it doesn't."""
    served.cuts = 3
    assert "hello" == pulled(tmp_path, f"{served.host}/a")
    begins = [begin for _, _, begin in served.asked if begin]
    assert 3 == len(begins)
    assert all(int(begin.removeprefix("bytes=").rstrip("-")) > 0 for begin in begins)
    served.cuts = 99
    with pytest.raises(BadRequest, match="has stopped in the middle"):
        pulled(tmp_path / "again", f"{served.host}/a")


def test_other_bytes_than_the_digests_are_refused(served: registry.Registry, tmp_path: Path) -> None:
    """Of a layer, of a configuration, of a manifest, and one that isn't the reference's."""
    manifest = json.loads(served.blobs[served.top])
    for row in (manifest["layers"][0], manifest["config"]):
        good = served.blobs[row["digest"]]
        served.blobs[row["digest"]] = good[:-1] + b"x"
        with pytest.raises(LeewardError):
            pulled(tmp_path / "other", f"{served.host}/a")
        served.blobs[row["digest"]] = good
    served.blobs[f"sha256:{'a' * 64}"] = served.blobs[served.top]
    with pytest.raises(BadImage, match="another digest than the reference"):
        pulled(tmp_path, f"{served.host}/a@sha256:{'a' * 64}")


@pytest.mark.parametrize(("change", "why"), [
    ({"layers": [{"digest": "sha256:x", "size": 1, "mediaType": "application/vnd.oci.image.layer.v1.tar"}] * 2}, "sha256"),
    ({"config": None}, "lacks a part"), ({"layers": None}, "lacks its list")])
def test_a_manifest_that_can_not_be_is_refused(change: dict[str, object], why: str, served: registry.Registry,
                                               tmp_path: Path) -> None:
    manifest = json.loads(served.blobs[served.top])
    served.top = served.put(json.dumps({**manifest, **change}).encode())
    with pytest.raises(BadImage, match=why):
        pulled(tmp_path, f"{served.host}/a")


def test_endless_answers_are_bounded(served: registry.Registry, tmp_path: Path) -> None:
    """A manifest, a token, and a blob that is longer than the manifest says."""
    good = served.top
    served.top = served.put(b" " * (5 << 20))
    with pytest.raises(BadImage, match="more than 4194304"):
        pulled(tmp_path, f"{served.host}/a")
    manifest = json.loads(served.blobs[good])
    served.blobs[manifest["config"]["digest"]] += b" " * (5 << 20)
    served.top = good
    assert "hello" == pulled(tmp_path, f"{served.host}/a")  # no more than the size was read
    served.wants, served.token = f'Bearer realm="{served.url}/token"', b" " * (2 << 20)
    with pytest.raises(BadImage, match="more than 1048576"):
        pulled(tmp_path, f"{served.host}/a")


@pytest.mark.parametrize("token", [b"no JSON", b"[]", b"{}", b'{"token": 1}', b'{"token": "a\\r\\nX: y"}', b'{"token": ""}'])
def test_what_is_no_token_is_refused(token: bytes, served: registry.Registry, tmp_path: Path) -> None:
    served.wants, served.token = f'Bearer realm="{served.url}/token"', token
    with pytest.raises(BadImage, match="gives no token"):
        pulled(tmp_path, f"{served.host}/a")


@pytest.mark.parametrize("wants", ['Bearer realm="http://192.0.2.1/token"', 'Bearer realm="https://me@x.org/"', "Bearer",
                                   "Digest x", 'Bearer realm="file:///"'])
def test_a_server_of_tokens_without_tls_is_not_asked(wants: str, served: registry.Registry, tmp_path: Path) -> None:
    served.wants = wants
    with pytest.raises(BadImage, match="isn't known"):
        pulled(tmp_path, f"{served.host}/a")


def test_logins_that_are_not_in_the_file_are_named(served: registry.Registry, tmp_path: Path) -> None:
    """Those of other hosts don't matter."""
    known(tmp_path, "x.org", credHelpers={served.host: "x"})
    with pytest.raises(BadRequest, match="in a credential store"):
        pulled(tmp_path, f"{served.host}/a")
    (tmp_path / "config.json").write_text(json.dumps({"auths": {served.host: {"identitytoken": "t"}}}))
    with pytest.raises(BadRequest, match="an identity token"):
        pulled(tmp_path, f"{served.host}/a")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadRequest, match="can't be read"):
        pulled(tmp_path, f"{served.host}/a")
    known(tmp_path, "x.org", credsStore="x")
    assert "hello" == pulled(tmp_path, f"{served.host}/a")


def test_no_registry_and_no_image(served: registry.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.blobs.clear()
    with pytest.raises(BadRequest, match="has no a:latest"):
        pulled(tmp_path, f"{served.host}/a")
    with pytest.raises(BadRequest, match="doesn't answer"):
        pulled(tmp_path, "127.0.0.1:1/a")
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(Unsupported, match=r"leeward\[images\]"):
        pulled(tmp_path, f"{served.host}/a")
