"""
The rows that `loopback = true` adds to the table: TCP and UDP, in a network namespace that has only the interface `lo`.

Runs in:   a developer's shell, where the programs are made, and the tests; pure data.
Who needs it: web servers and their tests, notebooks and kernels (Jupyter talks to its kernel over TCP), databases,
           debuggers, multiprocessing managers with an address, node's and java's development servers.
Costs:     the kernel's code for IPv4, IPv6, TCP, UDP and questions to rtnetlink becomes reachable for jobs. So the
           operator has to allow it.
Stands:    the network namespace. It belongs to the worker, has only the addresses 127.0.0.0/8 and ::1, and no job has a
           capability in it. So no packet leaves it, even if this filter allows a call.
"""

from __future__ import annotations

from leeward.isolation.seccomp.rules import ALLOW, Needs, Rule, each, is_, number, under

_SOCKET = ("servers and their clients in one job, over `lo`. No raw sockets, and no protocols but TCP and UDP: not"
           " MPTCP, SCTP or SMC")

_OWNER = ("nginx starts no worker without it. It sends SIGIO to a process of the caller's own pid namespace when a"
          " descriptor is ready; the namespace's init has no handler, so it gets no signal. Not F_SETSIG, which chooses"
          " another signal")

RULES: tuple[Rule, ...] = (
    *(Rule("socket", ALLOW, _SOCKET, (is_(0, family), under(1, "SOCK_TYPE_MASK", kind), protocol), Needs.LOOPBACK)
      for family in ("AF_INET", "AF_INET6")
      for kind, name in (("SOCK_STREAM", "IPPROTO_TCP"), ("SOCK_DGRAM", "IPPROTO_UDP"))
      for protocol in (number(2, 0), is_(2, name))),
    *(Rule("socket", ALLOW, "getifaddrs(3): ZeroMQ aborts if it fails, and so does Jupyter's kernel; node, go and"
           " psutil list interfaces by it. A job may only read; a change needs a capability",
           (is_(0, "AF_NETLINK"), under(1, "SOCK_TYPE_MASK", kind), is_(2, "NETLINK_ROUTE")), Needs.LOOPBACK)
      for kind in ("SOCK_RAW", "SOCK_DGRAM")),
    *each("setsockopt", 2, "TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT"
          " TCP_LINGER2 TCP_DEFER_ACCEPT TCP_QUICKACK TCP_USER_TIMEOUT TCP_FASTOPEN TCP_NOTSENT_LOWAT",
          "asyncio, node, java and go set these. Not TCP_ULP and TCP_CONGESTION, which load modules, nor TCP_REPAIR",
          is_(1, "IPPROTO_TCP"), needs=Needs.LOOPBACK),
    *each("setsockopt", 2, "IP_TOS IP_TTL IP_MTU_DISCOVER IP_RECVERR IP_PKTINFO IP_RECVTOS IP_RECVTTL",
          "UDP servers, uvloop and java set these. Not multicast, nor IP_OPTIONS", is_(1, "IPPROTO_IP"),
          needs=Needs.LOOPBACK),
    *each("setsockopt", 2, "IPV6_V6ONLY IPV6_TCLASS IPV6_UNICAST_HOPS IPV6_MTU_DISCOVER IPV6_RECVERR IPV6_RECVPKTINFO"
          " IPV6_RECVTCLASS IPV6_RECVHOPLIMIT",
          "the same for IPv6; every server that listens on :: sets IPV6_V6ONLY. Not IPV6_RECVHOPOPTS and its like, which"
          " are of headers that no packet of `lo` needs", is_(1, "IPPROTO_IPV6"),
          needs=Needs.LOOPBACK),
    *each("fcntl", 1, "F_SETOWN", _OWNER, needs=Needs.LOOPBACK),
    *each("ioctl", 1, "FIOASYNC", _OWNER, needs=Needs.LOOPBACK),
)
