"""Faults in what peers send: sentences of ours, each with its code."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Any

import pytest

from leeward.egress.broker import _told
from leeward.egress.faults import FAULTS, fault, of_connection, of_resolver


def tls(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] SECRET (_ssl.c:1000)")
    error.reason = reason  # type: ignore[assignment]
    return error


def certificate(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed: SECRET")
    error.verify_code, error.verify_message = code, "SECRET"
    return error


@pytest.mark.parametrize(("error", "code"), [
    (certificate(10), "tls-expired"), (certificate(18), "tls-self-signed"), (certificate(20), "tls-authority"),
    (certificate(62), "tls-name"), (certificate(9999), "tls-certificate"),
    (tls("TLSV1_ALERT_UNKNOWN_CA"), "tls-distrusted"), (tls("SSLV3_ALERT_CERTIFICATE_UNKNOWN"), "tls-distrusted"),
    (tls("SSLV3_ALERT_HANDSHAKE_FAILURE"), "tls-version"), (tls("WRONG_VERSION_NUMBER"), "tls-none"),
    (tls("TLSV1_ALERT_PROTOCOL_VERSION"), "tls-version"), (tls("HTTP_REQUEST"), "tls-none"),
    (tls("TLSV1_ALERT_INTERNAL_ERROR"), "tls-alert"), (tls("UNEXPECTED_EOF_WHILE_READING"), "tls-ended"),
    (tls("DECRYPTION_FAILED_OR_BAD_RECORD_MAC"), "tls-record"), (tls("SECRET"), "tls-record"), (tls(None), "tls-record"),
])
def test_a_fault_of_tls_has_a_code(error: ssl.SSLError, code: str) -> None:
    assert fault(code) == of_connection(error)


def test_a_fault_of_a_connection_is_the_kernels() -> None:
    assert "connection refused" == of_connection(ConnectionRefusedError(errno.ECONNREFUSED, "SECRET"))
    assert "the connection has failed" == of_connection(OSError("SECRET")) == of_connection(OSError(-77, "SECRET"))


def test_a_fault_of_the_resolver_has_a_code() -> None:
    for number, code in ((socket.EAI_NONAME, "dns-name"), (socket.EAI_AGAIN, "dns-again"), (socket.EAI_FAIL, "dns-failed"),
                         (None, "dns-failed")):
        assert fault(code) == of_resolver(socket.gaierror(number, "SECRET"))


def test_every_sentence_is_plain() -> None:
    for code in FAULTS:
        assert fault(code).endswith(f" ({code})")
        assert fault(code).isascii()


def test_an_exception_that_nobody_has_caught_is_logged_without_its_text(capfd: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_told)
        future: Any = loop.create_future()
        future.set_exception(ValueError("SECRET"))
        del future
        loop.call_soon(int, "SECRET")
        await asyncio.sleep(0)

    asyncio.run(fail())
    said = capfd.readouterr().err

    assert 2 == said.count("leeward broker: ") == said.count("ValueError")
    assert "SECRET" not in said
