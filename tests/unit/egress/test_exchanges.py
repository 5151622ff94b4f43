"""Exchanges: requests of one connection to a host and responses back, without a socket."""

from __future__ import annotations

from dataclasses import replace

import h11
import pytest

from leeward.egress.exchanges import END, MAX_WAITING, BodyEnd, Requests, ResponseError, Responses
from leeward.egress.faults import fault
from leeward.egress.heads import Head, HeadError

GET = b"GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def drain(requests: Requests) -> list[Head | bytes | BodyEnd]:
    """What there is now."""
    found: list[Head | bytes | BodyEnd] = []
    while (event := requests.next()) is not None:
        found.append(event)
    return found


def passed_on(requests: Requests, most: int = 0) -> tuple[bytes, Responses]:
    """The bytes of a whole request for the host."""
    responses, sent = Responses(most), b""
    for event in drain(requests):
        if isinstance(event, Head):
            sent += responses.request(event)
        elif isinstance(event, BodyEnd):
            sent += responses.end()
        else:
            sent += responses.data(event)
    return sent, responses


def answered(requests: Requests, responses: Responses, data: bytes) -> bytes:
    """The bytes of a response for the job."""
    responses.receive(data)
    sent = b""
    while (event := responses.next()) is not None:
        sent += requests.send(event)
    return sent


def test_a_request_goes_and_its_response_comes() -> None:
    """Written anew on both sides."""
    requests = Requests()
    requests.receive(GET)
    sent, responses = passed_on(requests)

    assert sent == b"GET /a HTTP/1.1\r\nhost: example.org\r\n\r\n"
    assert b"\r\n\r\nok" == answered(requests, responses, OK)[-6:]
    assert requests.is_done
    assert responses.keeps


def test_requests_one_after_another() -> None:
    """Of a connection that is kept, also where the second came with the first: its head isn't read before its turn."""
    requests = Requests()
    requests.receive(GET + b"POST /b HTTP/1.1\r\nHost: example.org\r\nContent-Length: 3\r\n\r\nabc" + GET)
    for target, body in ((b"/a", b""), (b"/b", b"abc"), (b"/a", b"")):
        sent, responses = passed_on(requests)
        assert target == sent.split()[1]
        assert sent.endswith(b"\r\n\r\n" + body)
        assert requests.next() is None
        done = requests.is_done
        assert not done
        answered(requests, responses, OK)
        assert requests.is_done
        requests.renew()
    assert requests.is_idle
    assert requests.next() is None


def test_a_second_head_is_checked_like_the_first() -> None:
    """Behind a body too, where h11 alone would take a bare line feed."""
    requests = Requests()
    requests.receive(b"POST /b HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\n\r\nxGET / HTTP/1.1\nHost: b.org\n\n")
    answered(requests, passed_on(requests)[1], OK)
    requests.renew()
    with pytest.raises(HeadError, match="bare line feed"):
        requests.next()


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_chunks_are_read_and_written_anew(step: int) -> None:
    """Extensions and trailers don't go on."""
    data = (b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n")
    requests, responses, sent = Requests(), Responses(), b""
    for place in range(0, len(data), step):
        requests.receive(data[place:place + step])
        for event in drain(requests):
            if isinstance(event, Head):
                sent += responses.request(event)
            else:
                sent += responses.end() if isinstance(event, BodyEnd) else responses.data(event)

    assert sent.startswith(b"POST / HTTP/1.1\r\nhost: a.org\r\ntransfer-encoding: chunked\r\n\r\n")
    assert sent.endswith(b"0\r\n\r\n")
    server = h11.Connection(h11.SERVER)
    server.receive_data(sent)
    body = b""
    while not isinstance(event := server.next_event(), h11.EndOfMessage):
        body += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert body == b"abcde"
    assert not event.headers


@pytest.mark.parametrize("body", [b"x\r\n", b"-1\r\n", b"3\r\nabcd\r\n", b"0x3\r\nabc\r\n", b"3\nabc\r\n",
                                  b"fffffffffffffffffffffff\r\n", b"3" * 40000])
def test_broken_chunks_end_the_request(body: bytes) -> None:
    """As an error of the head's kind, so that one answer is given."""
    requests = Requests()
    requests.receive(b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    with pytest.raises(HeadError):
        drain(requests)


@pytest.mark.parametrize("body", [b"3\nabc\n0\n\n", b"3 \nabc"])
def test_chunks_with_bare_line_feeds_are_none(body: bytes) -> None:
    """Nothing of them goes on."""
    requests = Requests()
    requests.receive(b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert len(drain(requests)) == 1


def test_bodies_have_a_bound() -> None:
    """By their length before they come, by chunks as they come."""
    requests = Requests(most=4)
    requests.receive(b"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 5\r\n\r\n")
    with pytest.raises(HeadError, match="request body too large") as caught:
        requests.next()
    assert caught.value.status == 413
    assert requests.refuse(413, "too large").startswith(b"HTTP/1.1 413 Content Too Large\r\n")
    requests = Requests(most=4)
    requests.receive(b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n")
    with pytest.raises(HeadError, match="request body too large"):
        drain(requests)
    requests = Requests()
    requests.receive(GET)
    _, responses = passed_on(requests, most=1)
    with pytest.raises(ResponseError, match="response body too large"):
        answered(requests, responses, OK)


def test_waiting_requests_have_a_bound() -> None:
    """Bytes behind a request that isn't answered: the job is read no more, and more than that is an error."""
    requests = Requests()
    requests.receive(GET)
    drain(requests)
    requests.receive(b"G" * MAX_WAITING)
    assert requests.room == 0
    with pytest.raises(HeadError, match="may wait"):
        requests.receive(b"x")


def test_a_websocket_passes_after_101() -> None:
    """Head and response by the rules, then bytes as they are."""
    requests = Requests()
    requests.receive(b"GET /ws HTTP/1.1\r\nHost: a.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                     b"Sec-WebSocket-Key: eA==\r\n\r\nfirst")
    sent, responses = passed_on(requests)
    assert b"connection: upgrade\r\nupgrade: websocket\r\n" in sent
    got = answered(requests, responses, b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
                                        b"Upgrade: websocket\r\n\r\nframe")
    assert got.startswith(b"HTTP/1.1 101 ")
    assert responses.is_switched
    assert not requests.is_done
    assert (requests.rest(), responses.rest()) == (b"first", b"frame")


def test_a_host_cannot_switch_unasked() -> None:
    """101 to a request that offered nothing, or another protocol than was offered."""
    requests = Requests()
    requests.receive(GET)
    _, responses = passed_on(requests)
    with pytest.raises(ResponseError):
        answered(requests, responses, b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert not responses.is_switched


def test_connect_is_answered_by_the_broker() -> None:
    """And what the job sent behind it belongs to the connection within."""
    requests = Requests()
    requests.receive(b"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org:443\r\n\r\n\x16\x03")
    [head] = drain(requests)
    assert isinstance(head, Head)
    assert (head.form, head.port) == ("authority", 443)
    assert requests.send(h11.Response(status_code=200, headers=[])).startswith(b"HTTP/1.1 200 ")
    assert not requests.is_done
    assert requests.rest() == b"\x16\x03"


def test_100_continue_comes_from_the_host() -> None:
    """The informational response, and then the response."""
    requests = Requests()
    requests.receive(b"POST / HTTP/1.1\r\nHost: a.org\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    sent, responses = passed_on(requests)
    assert b"expect: 100-continue" in sent
    assert answered(requests, responses, b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 100 ")
    requests.receive(b"ok")
    assert drain(requests) == [b"ok", END]


def test_a_response_without_a_length_gets_chunks() -> None:
    """For a job of HTTP/1.1; the host's connection isn't kept."""
    requests = Requests()
    requests.receive(GET)
    _, responses = passed_on(requests)
    sent = answered(requests, responses, b"HTTP/1.0 200 OK\r\nConnection: close\r\nTrailer: x\r\n\r\nab")
    responses.receive(b"")
    while (event := responses.next()) is not None:
        sent += requests.send(event)

    assert b"transfer-encoding: chunked" in sent.lower()
    assert b"trailer:" not in sent.lower()
    assert sent.endswith(b"0\r\n\r\n")
    assert not responses.keeps


def test_refusals_are_whole_responses() -> None:
    """Before a response has begun; after that the connection is to be cut."""
    requests = Requests()
    requests.receive(b"HEAD / HTTP/1.1\r\nHost: a.org\r\n\r\n")
    responses = Responses()
    drain(requests)
    refusal = requests.refuse(403, "no \u00e9")
    assert refusal.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert refusal.endswith(b"\r\n\r\n")  # of HEAD
    requests.send(h11.Response(status_code=200, headers=[]))
    assert requests.refuse(403, "no") == b""
    assert Requests().refuse(400, "no").endswith(b"Connection: close\r\n\r\nno\n")
    with pytest.raises(ResponseError, match="no request"):
        Requests().send(h11.Response(status_code=200, headers=[]))
    del responses


def test_the_end_of_a_connection() -> None:
    """Between requests it is one; within a head or a body it is an error."""
    requests = Requests()
    requests.receive(b"")
    assert requests.next() is None
    assert requests.is_idle
    requests = Requests()
    requests.receive(GET[:9])
    assert requests.next() is None
    requests.receive(b"")
    with pytest.raises(HeadError, match="within a head"):
        requests.next()
    requests = Requests()
    requests.receive(b"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 5\r\n\r\nab")
    drain(requests)
    requests.receive(b"")
    with pytest.raises(HeadError, match="the body"):
        drain(requests)


def test_an_empty_line_before_a_request_is_let_pass() -> None:
    """One; old programs send it behind a body."""
    requests = Requests()
    requests.receive(b"\r\n" + GET)
    assert len(drain(requests)) == 2
    requests = Requests()
    for piece in (b"\r", b"\n", GET[:1], GET[1:]):
        assert requests.next() is None
        requests.receive(piece)
    assert len(drain(requests)) == 2
    requests = Requests()
    requests.receive(b"\r\n\r\n" + GET)
    with pytest.raises(HeadError):
        drain(requests)


def test_a_broken_response_is_an_error() -> None:
    """For which the broker answers."""
    for data in (b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b""):
        requests = Requests()
        requests.receive(GET)
        _, responses = passed_on(requests)
        with pytest.raises(ResponseError, match=r"HTTP error: the host has .* \(response-(head|cut)\)"):
            answered(requests, responses, data)
        assert requests.refuse(502, "broken").startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(("data", "code"), [
    (b"HTTP/1.1 200 OK\r\nX-SECRET\r\n\r\n", "response-head"), (b"HTTP/1.1 200 OK\r\nX: SECRET\0\r\n\r\n", "response-head"),
    (b"SECRET\r\n\r\n", "response-head"), (b"HTTP/1.1 SECRET\r\n\r\n", "response-head"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: SECRET\r\n\r\n", "response-head"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nSECRET\r\n", "response-body"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\naSECRET", "response-body"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nSECRET\r\n\r\n", "response-body"),
])
def test_the_error_of_a_broken_response_has_no_byte_of_it(data: bytes, code: str) -> None:
    """It has a sentence of ours, with a code."""
    requests = Requests()
    requests.receive(GET)
    _, responses = passed_on(requests)
    with pytest.raises(ResponseError) as broken:
        answered(requests, responses, data)

    assert fault(code) == str(broken.value)


def test_a_response_that_is_cut_is_said_to_be() -> None:
    requests = Requests()
    requests.receive(GET)
    _, responses = passed_on(requests)
    for data in (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nSECRET", b""):
        responses.receive(data)
    assert responses.next()
    assert responses.next()
    with pytest.raises(ResponseError) as broken:
        responses.next()

    assert fault("response-cut") == str(broken.value)


def test_the_error_of_a_broken_body_has_no_byte_of_it() -> None:
    requests = Requests()
    requests.receive(b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\nSECRET\r\n")
    with pytest.raises(HeadError) as broken:
        drain(requests)

    assert fault("request-body") == str(broken.value)


def test_a_head_that_h11_does_not_write_is_refused() -> None:
    requests = Requests()
    requests.receive(GET)
    head = requests.next()
    assert isinstance(head, Head)
    with pytest.raises(HeadError) as refused:
        Responses().request(replace(head, fields=((b"x", b"a\r\nb: c"),)))
    assert fault("request-fields") == str(refused.value)
    assert b"\r\nx: y\r\n" in Responses().request(replace(head, fields=((b"x", b"y"),)))
