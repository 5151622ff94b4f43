"""TLS that ends in a pipe: with a certificate by an authority of leeward's, between two ends in this process."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from leeward.daemon.pool import seals
from leeward.egress.pipes import Pipe, TlsPipe
from leeward.egress.sealing import Certificates, towards_hosts
from leeward.egress.tenancy import NotAllowed
from leeward.spec.egress_tls import LeaseSeal

NAME = "api.example.org"


def seal() -> LeaseSeal:
    return seals.make_for_lease(1)


def certificates(of: LeaseSeal) -> Certificates:
    return Certificates(of.key, of.certificate)


def trusting(of: LeaseSeal) -> ssl.SSLContext:
    """What a sandbox of *of* checks hosts by."""
    return ssl.create_default_context(cadata=of.certificate.decode())


async def joined(inner: ssl.SSLContext, outer: ssl.SSLContext, name: str = NAME) -> tuple[TlsPipe, TlsPipe]:
    """The sandbox's end, and the broker's."""
    near, far = socket.socketpair()
    job, broker = TlsPipe(Pipe(near), inner, name), TlsPipe(Pipe(far), outer)
    done = await asyncio.gather(job.shake_hands(60), broker.shake_hands(60), return_exceptions=True)
    failed = [each for each in done if each is not None]
    if failed:
        job.close()
        broker.close()
        raise failed[0]
    return job, broker


def test_a_sandbox_trusts_certificates_of_its_authority() -> None:
    """For that name, by what clients check: strictly, as newer versions of Python do. And bytes go through, whole."""
    async def talk() -> None:
        of = seal()
        context = trusting(of)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["h2", "http/1.1"])
        job, broker = await joined(context, certificates(of).towards_sandboxes(NAME))
        assert "http/1.1" == job._tls.selected_alpn_protocol()
        data = bytes(range(256)) * 1000
        sending = asyncio.ensure_future(job.send(data))
        got = b""
        while len(got) < len(data):
            got += await broker.receive()
        await sending
        assert data == got
        assert (len(data), len(data)) == (job.written, broker.read)
        assert broker.is_quiet
        broker.give_back(b"x")
        assert not broker.is_quiet
        assert b"x" == await broker.receive()
        job.finish()
        assert b"" == await broker.receive()
        job.close()
        broker.close()

    asyncio.run(talk())


def test_an_end_that_was_cut_off_is_no_end() -> None:
    async def talk() -> None:
        of = seal()
        job, broker = await joined(trusting(of), certificates(of).towards_sandboxes(NAME))
        job._inner.close()
        with pytest.raises(OSError):
            await broker.receive()
        broker.close()

    asyncio.run(talk())


@pytest.mark.parametrize("name", ["evil.example.org", "example.org", "x.api.example.org"])
def test_a_host_with_another_name_is_refused(name: str) -> None:
    async def talk() -> None:
        of = seal()
        with pytest.raises(NotAllowed, match=r"TLS: the host's certificate: .*mismatch"):
            await joined(trusting(of), certificates(of).towards_sandboxes(NAME), name)

    asyncio.run(talk())


def test_the_authority_of_another_sandbox_is_not_trusted() -> None:
    async def talk() -> None:
        ours = certificates(seal())
        with pytest.raises(NotAllowed, match="TLS: the host's certificate"):
            await joined(trusting(seal()), ours.towards_sandboxes(NAME))
        with pytest.raises(NotAllowed, match="TLS: the host's certificate"):  # nor is one's own a host's
            await joined(towards_hosts("", b""), ours.towards_sandboxes(NAME))

    asyncio.run(talk())


def test_a_handshake_has_a_deadline_and_needs_tls() -> None:
    async def talk() -> None:
        context = certificates(seal()).towards_sandboxes(NAME)
        near, far = socket.socketpair()
        pipe = TlsPipe(Pipe(far), context)
        with near:
            with pytest.raises(NotAllowed, match=r"no handshake within 0.01 s"):
                await pipe.shake_hands(0.01)
            near.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(NotAllowed, match="TLS: "):
                await pipe.shake_hands(60)
        pipe.close()

    asyncio.run(talk())


def test_contexts_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leeward.egress.sealing._MOST_CONTEXTS", 2)
    made = certificates(seal())
    first = made.towards_sandboxes("a.example.org")

    made.towards_sandboxes("b.example.org")
    assert first is made.towards_sandboxes("a.example.org")
    made.towards_sandboxes("c.example.org")
    assert {"a.example.org", "c.example.org"} == set(made._contexts)
