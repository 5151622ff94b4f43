"""The sandbox's side of egress: which listeners, which routes, in which order."""

from __future__ import annotations

import errno
import socket
from collections import Counter

import pytest
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from leeward._native.steps import Call, Cell, Table
from leeward.errors import BadRequest
from leeward.isolation import egress_route
from leeward.spec.egress_policy import AGENT_PORTS
from leeward.wire.control import MAX_FDS


def test_the_ports_are_those_of_the_policy_and_two_more() -> None:
    made = egress_route.plan([443, 80, 53, 443])

    assert (53, 3128, 80, 443) == made.ports
    assert made.listeners == len(made.routes) * 5


@pytest.mark.parametrize(("ports", "said"), [
    (range(1000, 1010), "10 ports"), ([0], "1 to 65535"), ([65536], "1 to 65535"), ([-1], "1 to 65535"),
])
def test_too_many_or_malformed_ports_are_refused(ports: list[int], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        egress_route.plan(ports)


def test_without_the_route_the_proxy_is_alone() -> None:
    """With a name server, both for IPv4, and without a step of rtnetlink's."""
    made = egress_route.plan([443, 8443], routed=False)
    steps, cells = egress_route.steps(made)

    assert ((53, 3128), (), 1, 3) == (made.ports, made.routes, made.families, made.listeners)
    assert ["listener 53", "listener 53", "listener 3128"] == [cell.name for cell in cells]
    assert {Call.SOCKET, Call.SETSOCKOPT, Call.BIND, Call.LISTEN} == {step.call for step in steps}
    assert {socket.AF_INET} == {step.arguments[0] for step in steps if Call.SOCKET is step.call}


def test_programs_are_told_of_the_proxy_in_both_cases() -> None:
    """curl reads http_proxy in lower case alone, others HTTP_PROXY; what is of the sandbox itself goes by none."""
    told = dict(egress_route.PROXY_VARIABLES)

    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        assert told[name] == told[name.upper()]
    assert "http://127.0.0.1:3128" == told["https_proxy"]
    assert {"localhost", "127.0.0.1"} < set(told["no_proxy"].split(","))


def test_all_that_a_keeper_sends_fits_beside_one_message() -> None:
    """Its ptmx, the files that tell a machine's size, and the listeners of a policy with as many ports as there may be."""
    from leeward.spec.machine import SIZED

    most = egress_route.plan(range(1000, 1000 + egress_route.MOST_PORTS))
    assert 1 + len(SIZED) + max(most.listeners, 2 * (2 + egress_route.MOST_PORTS + 1)) <= MAX_FDS


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_route_says_that_every_address_is_local(family: int) -> None:
    """As the kernel would read it: everything, in the table of local addresses, by `lo`."""
    read = rtmsg(egress_route.route(family))
    read.decode()

    assert (family, 0, 255, 2) == (read["family"], read["dst_len"], read["table"], read["type"])
    assert 1 == read.get_attr("RTA_OIF")
    assert read.get_attr("RTA_DST") is None


def test_every_family_has_its_route_and_then_its_listeners() -> None:
    """One for DNS over UDP, then the ports' in order; each is bound before it listens, none shares its port."""
    made = egress_route.plan([80])
    steps, cells = egress_route.steps(made)

    assert made.listeners == len(cells)
    assert ["listener 53", "listener 53", "listener 3128", "listener 80"] == [cell.name for cell in cells[:4]]
    calls = [step.call for step in steps]
    assert [Call.SOCKET, Call.WRITE, Call.READ, Call.CLOSE] == calls[:4]
    assert len(made.routes) * 3 == calls.count(Call.LISTEN)
    options = Counter(step.arguments[1:3] for step in steps if Call.SETSOCKOPT is step.call)
    only = options.pop((socket.IPPROTO_IPV6, socket.IPV6_V6ONLY), 0)
    assert (len(cells) // 2 if len(made.routes) > 1 else 0) == only
    assert {(socket.SOL_SOCKET, socket.SO_SNDBUF), (socket.IPPROTO_TCP, socket.TCP_CONGESTION)} == set(options)


def test_the_first_connection_is_not_paced_either() -> None:
    """The kernel makes it as soon as the listener listens, before the broker has that: it had a host's BBR."""
    cell = Cell("listener")
    table = Table(egress_route._listen_steps(cell, socket.AF_INET, socket.SOCK_STREAM, 0))
    table.run()
    with socket.socket(fileno=table.value(cell)) as listener:
        listener.setblocking(True)
        with socket.create_connection(("127.0.0.1", listener.getsockname()[1])), listener.accept()[0] as accepted:
            used = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            room = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

    assert (b"reno", 256 << 10) == (used.rstrip(b"\0"), room)


def test_a_host_that_allows_other_controls_only_has_its_own() -> None:
    """net.ipv4.tcp_allowed_congestion_control: pacing costs time, and no listener costs the network."""
    steps, _ = egress_route.steps(egress_route.plan([80]))

    controls = [step for step in steps if Call.SETSOCKOPT is step.call
                and step.arguments[1:3] == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)]
    assert controls
    assert {(0, -errno.EPERM, -errno.ENOENT)} == {step.answers for step in controls}


def test_a_sandbox_has_room_for_the_ports_of_agents() -> None:
    assert 2222 in AGENT_PORTS
    assert set(AGENT_PORTS) < set(egress_route.plan(AGENT_PORTS).ports)
