"""
The sandbox's side of egress: a route by which every address is local, and listeners whose connections the broker
accepts.

Runs in:   plan() in the daemon; the steps are taken in the keeper, before its first runner.
Stands if: Landlock is missing: a port without a listener refuses at once, and nothing but `lo` is in the namespace.
Without:   if a kernel or a container refuses the route, a sandbox has only the proxy's port on 127.0.0.1, and a name
           server whose addresses can't be reached: programs that don't use the proxy are refused at once. Decision
           0110.
Leaves:    no way to the host. Only the broker (leeward/egress) has sockets in the sandbox's namespace and on the host.
Source:    ip-route(8) on `local`, rtnetlink(7), ip(7) on IP_PKTINFO

With the route `local default dev lo` a listener on 0.0.0.0:443 takes connections to any address on port 443, and
getsockname(2) of an accepted connection returns the address that was meant. The listeners exist before the first job,
don't share their ports (SO_REUSEPORT), and stay open in the keeper as long as the namespace exists. So no job can bind
one of their ports, whatever address it binds.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable

from leeward._native.spawn import Clone
from leeward._native.steps import Block, Call, Cell, Step, Table, gives, returns
from leeward.base.dataclass import dataclass, replace
from leeward.base.points import point
from leeward.errors import BadRequest, KernelRefusal, Unsupported
from leeward.isolation.namespaces import loopback_steps
from leeward.wire.egress_control import DNS, PROXY

#: The greatest number of ports of a policy besides DNS and PROXY: the listeners of both families have to fit into one
#: message.
MOST_PORTS = 9
#: Connections that wait to be accepted on one listener. Further ones are dropped, and the client's kernel retries them.
BACKLOG = 1024
#: SO_SNDBUF of connections to sandboxes, which the kernel doubles for its own overhead. Their path is the loopback
#: device, which is so quick that a larger buffer gains nothing. TCP would let the buffer grow to 4 MiB; then a fast
#: client sleeps and is woken for each segment of 64 KiB, and the broker takes twice the processor time: 0.25 to 0.4 s
#: for 1 GiB, in place of 0.08 to 0.23 s.
_SENT = 128 << 10
#: Their congestion control, which every kernel has. A host's BBR would have a timer pace what never leaves the host, which
#: took the broker twice the processor time.
_CONTROL = b"reno"

#: The name server of a sandbox: an address that the route catches, and that programs treat as near. A resolver repeats
#: a query that no broker has answered: a broker that has died is restarted after a tenth of a second, and the start of
#: a daemon's first broker takes seconds on a busy machine.
NAME_SERVER = "127.0.0.53"
RESOLV_CONF = f"# The names that this sandbox may reach.\nnameserver {NAME_SERVER}\noptions timeout:3 attempts:4\n"

#: The environment variables by which programs find the proxy. curl reads http_proxy only in lower case, other programs
#: only in upper case; wget and Go read both. Node reads them from 22.21 on, if NODE_USE_ENV_PROXY is set. Connections
#: to the sandbox itself use no proxy; "::1" isn't listed, since some clients don't read it as an address.
PROXY_URL = f"http://127.0.0.1:{PROXY}"
_NO_PROXY = "localhost,127.0.0.1,leeward"
PROXY_VARIABLES = (
    *((name.swapcase() if upper else name, PROXY_URL) for name in ("http_proxy", "https_proxy", "all_proxy")
      for upper in (False, True)),
    ("no_proxy", _NO_PROXY), ("NO_PROXY", _NO_PROXY), ("NODE_USE_ENV_PROXY", "1"),
)

_LOOPBACK = 1  # the interface `lo` of each network namespace
_NETLINK_ROUTE = 0
_TABLE_LOCAL = 255
#: Bytes of an acknowledgement that reports success: struct nlmsghdr and struct nlmsgerr.
_DONE = 16 + 4 + 16


@dataclass(frozen=True, slots=True)
class EgressPlan:
    ports: tuple[int, ...]  # the TCP ports of listeners
    #: Requests to rtnetlink that make every address local, for IPv4 and then, if the host has it, for IPv6; () if no
    #: route can be made.
    routes: tuple[bytes, ...]

    @property
    def families(self) -> int:
        return max(1, len(self.routes))

    @property
    def listeners(self) -> int:
        return self.families * (len(self.ports) + 1)


def plan(ports: Iterable[int], *, routed: bool = True) -> EgressPlan:
    """
    The plan for sandboxes of a policy that names *ports*; they have only the proxy if addresses can't be *routed*.
    BadRequest for ports that are too many or not valid; Unsupported without pyroute2.
    """
    wanted = ports_beside(ports)
    if len(wanted) > MOST_PORTS:
        raise BadRequest(f"egress: {len(wanted)} ports, and a sandbox has room for {MOST_PORTS}")
    if not all(0 < port < 1 << 16 for port in wanted):
        raise BadRequest("egress: a port is a number from 1 to 65535")
    if not routed:
        return EgressPlan((DNS, PROXY), ())
    families = [socket.AF_INET, *([socket.AF_INET6] if _has_ipv6() else [])]
    return EgressPlan((DNS, PROXY, *sorted(wanted)), tuple(map(route, families)))


def ports_beside(ports: Iterable[int]) -> set[int]:
    """*ports* without those that every sandbox with egress has."""
    return {port for port in ports if port not in (DNS, PROXY)}


def _has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def route(family: int) -> bytes:
    """The request to rtnetlink for `local default dev lo`; Unsupported without pyroute2."""
    try:
        # Of the extra `egress`.
        from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST
        from pyroute2.netlink.rtnl import RTM_NEWROUTE, rt_proto, rt_scope, rt_type
        from pyroute2.netlink.rtnl.rtmsg import rtmsg
    except ImportError:
        raise Unsupported("egress", have="no pyroute2", need="it, for the route of sandboxes with egress",
                          cure="pip install 'leeward[egress]'") from None
    message = rtmsg()
    scope = rt_scope["host" if family == socket.AF_INET else "universe"]
    for name, value in (("family", family), ("table", _TABLE_LOCAL), ("proto", rt_proto["boot"]), ("scope", scope),
                        ("type", rt_type["local"])):
        message[name] = value
    message["header"]["type"] = RTM_NEWROUTE
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    message["header"]["sequence_number"] = 1
    message["attrs"] = [("RTA_TABLE", _TABLE_LOCAL), ("RTA_OIF", _LOOPBACK)]
    message.encode()
    return bytes(message.data)


@point("egress.steps")
def steps(plan: EgressPlan) -> tuple[list[Step], list[Cell]]:
    """
    Make the routes in a network namespace whose `lo` is up, and open the listeners: the steps, and the listeners'
    cells, for each family DNS over UDP, and then the TCP ports in order. Needs CAP_NET_ADMIN and CAP_NET_BIND_SERVICE.
    If IPv6 is switched off for `lo`, its route is refused, and its addresses can't be reached.
    """
    made: list[Step] = []
    cells: list[Cell] = []
    for family, request in zip((socket.AF_INET, socket.AF_INET6), plan.routes or (b"",), strict=False):
        made += _route_steps(request, optional=family == socket.AF_INET6) if request else []
        for kind, port in ((socket.SOCK_DGRAM, DNS), *((socket.SOCK_STREAM, port) for port in plan.ports)):
            cell = Cell(f"listener {port}")
            made += _listen_steps(cell, family, kind, port)
            cells.append(cell)
    return made, cells


def is_refused(request: bytes) -> bool:
    """
    Whether this host refuses the route of *request*. Tries it in new namespaces, which the calling process enters; it
    must have only one thread. KernelRefusal if another call is refused.
    """
    Table([returns(Call.UNSHARE, Clone.NEWUSER | Clone.NEWNET), *loopback_steps()]).run()
    try:
        Table(_route_steps(request, optional=False)).run()
    except KernelRefusal:
        return True
    return False


def _route_steps(request: bytes, *, optional: bool) -> list[Step]:
    fd, size = Cell("rtnetlink"), _DONE + len(request) - 16
    answer = returns(Call.READ, fd, Block(bytes(256)), 256, value=_DONE)
    return [
        gives(fd, Call.SOCKET, socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE),
        returns(Call.WRITE, fd, Block(request), len(request), value=len(request)),
        replace(answer, answers=(_DONE, size)) if optional else answer,
        returns(Call.CLOSE, fd),
    ]


def _listen_steps(cell: Cell, family: int, kind: int, port: int) -> list[Step]:
    flags = kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    if family == socket.AF_INET:  # struct sockaddr_in, of any address
        address, only = struct.pack("=H", family) + struct.pack("!H", port) + bytes(12), []
    else:
        address = struct.pack("=H", family) + struct.pack("!H", port) + bytes(24)
        only = [_option(cell, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, struct.pack("i", 1))]
    # A connection inherits these when the kernel makes it, which may be before the broker has the listener.
    listens = [
        _option(cell, socket.SOL_SOCKET, socket.SO_SNDBUF, struct.pack("i", _SENT)),
        _option(cell, socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONTROL, unless=(errno.EPERM, errno.ENOENT)),
        returns(Call.LISTEN, cell, BACKLOG),
    ]
    return [
        gives(cell, Call.SOCKET, family, flags, 0),
        *only,
        returns(Call.BIND, cell, Block(address), len(address)),
        *(listens if kind == socket.SOCK_STREAM else []),
    ]


def _option(cell: Cell, level: int, option: int, value: bytes, unless: tuple[int, ...] = ()) -> Step:
    return returns(Call.SETSOCKOPT, cell, level, option, Block(value), len(value), unless=unless)
