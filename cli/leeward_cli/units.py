"""
The units of systemd for the daemon, as text: a service and a socket, for the system or for one user.

The system's service has a user of its own that exists only while the service runs (DynamicUser). Its socket belongs to
systemd: clients trust it as root's, and no client is refused during a restart. The daemon needs the rights to set up
sandboxes, and every job inherits systemd's filters and mounts. So these settings stay off:

    RestrictNamespaces              sandboxes are namespaces
    ProtectKernelTunables,          they cover parts of /proc, and the kernel then refuses a sandbox its own /proc
    ProtectKernelLogs, ProtectProc
    ProtectKernelModules            it covers a part of /usr, and the kernel then refuses a bind of the rest
    ProtectControlGroups            leeward makes cgroups for limits, below the service's own (Delegate)
    ProtectHostname                 a sandbox has a host name of its own
    PrivateUsers                    the daemon maps ids of its host
    SystemCallFilter                a job's own filter allows the calls in docs/seccomp.md

systemd.service(5), systemd.socket(5), systemd.exec(5), systemd.resource-control(5)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The first line of the files that leeward has written.
MARK = "# Written by `leeward daemon install`; `leeward daemon uninstall` removes it."
SERVICE, SOCKET = "leeward.service", "leeward.socket"
#: The path of the system's socket, which is root's default.
SYSTEM_SOCKET = "/run/leeward/leeward.sock"

_SERVICE = """\
{mark}
# To change something: systemctl{user} edit leeward.service
[Unit]
Description=leeward, which runs untrusted Python code
Documentation=man:systemd.service(5)
Requires=leeward.socket
After=leeward.socket

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=kill -HUP $MAINPID
# Four seconds for running jobs, and one for the rest; what is left then is killed with the group. While it puts sandboxes
# to sleep, in its StateDirectory, the daemon asks for more time.
KillMode=mixed
TimeoutStopSec=15
StateDirectory=leeward-service
StateDirectoryMode=0700
TimeoutStartSec=60
Restart=on-failure
WatchdogSec=30
# Limits of jobs are groups below the service's own.
Delegate=yes
LimitNOFILE=524288
UMask=0077
# Where AppArmor keeps user namespaces from programs without one: `leeward doctor` says how to load it.
AppArmorProfile=-leeward
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
{more}
[Install]
WantedBy={target}
Also=leeward.socket
"""

_SYSTEM_MORE = """\
User=leeward
DynamicUser=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
RemoveIPC=yes
KeyringMode=private
"""

_SOCKET = """\
{mark}
[Unit]
Description=leeward's socket

[Socket]
ListenStream={path}
SocketMode={mode}
{group}DirectoryMode={folder}
Backlog=4096
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """For one *user*'s manager or the system's: the daemon's *command*, and the *group* that may use it ("": root)."""

    user: bool
    command: Sequence[str]
    group: str = ""


def quoted(word: str) -> str:
    """*word*, quoted for ExecStart: systemd expands % and $, and splits at blanks."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return plain if plain == word and word and not set(word) & set(" \t;'") else f'"{plain}"'


def units(what: Installation, mark: str = MARK) -> dict[str, str]:
    """The text of each unit, by its name; *mark* is the first line, a comment. A distribution's package has its own."""
    command = [*what.command, *(["--group", what.group] if what.group else [])]
    service = _SERVICE.format(
        mark=mark, user=" --user" if what.user else "", command=" ".join(map(quoted, command)),
        more="" if what.user else _SYSTEM_MORE, target="default.target" if what.user else "multi-user.target")
    socket = _SOCKET.format(
        mark=mark, path="%t/leeward/leeward.sock" if what.user else SYSTEM_SOCKET,
        mode="0660" if what.group else "0600", group=f"SocketGroup={what.group}\n" if what.group else "",
        folder="0700" if what.user else "0755")
    return {SERVICE: service, SOCKET: socket}
