"""
What to type: the lines of `leeward doctor`, by cause and by who made the container.

Runs in:   anywhere; pure.
Source:    docker-run(1), podman-run(1), apparmor_parser(8), wsl.conf and .wslconfig in Microsoft's
           documentation of WSL

A line is for a shell, as the user who asked. What only the host of a container can change says so
behind a #.
"""

from __future__ import annotations

from leeward.isolation.host.facts import Engine, Facts, Kernel

#: The files that `leeward doctor --profile` prints, under the names that the lines give them.
SECCOMP_FILE = "leeward-seccomp.json"
APPARMOR_FILE = "/etc/apparmor.d/leeward"

NEWER = "install Linux 5.13 or newer"


def _jq(change: str) -> str:
    """
    For who wrote the container's config.json himself.
    """
    return f"jq '{change}' config.json >new.json && mv new.json config.json"


#: For a container: what opens it, by who made it.
_OPTIONS: dict[str, dict[Engine, str]] = {
    "seccomp": {
        Engine.DOCKER: f"docker run --rm IMAGE leeward doctor --profile seccomp >{SECCOMP_FILE}; "
                       f"docker run --security-opt seccomp={SECCOMP_FILE} ... IMAGE",
        Engine.PODMAN: f"podman run --rm IMAGE leeward doctor --profile seccomp >{SECCOMP_FILE}; "
                       f"podman run --security-opt seccomp={SECCOMP_FILE} ... IMAGE",
        Engine.KUBERNETES: f"leeward doctor --profile seccomp >{SECCOMP_FILE}  # into the node's seccomp folder; and in"
                           " the pod's securityContext a seccompProfile of type Localhost that names it",
        Engine.OCI: "leeward doctor --profile seccomp  # is what belongs into linux.seccomp of config.json",
    },
    # The host's root could write to /proc/sys then, so never without another user.
    "proc": {
        Engine.DOCKER: "docker run --user 1000:1000 --security-opt systempaths=unconfined ...",
        Engine.PODMAN: "podman run --user 1000:1000 --security-opt unmask=ALL ...",
        Engine.KUBERNETES: "kubectl explain pod.spec.containers.securityContext.procMount  # and set it to Unmasked,"
                           " with hostUsers: false in the pod",
        Engine.OCI: _jq('.process.user={"uid":1000,"gid":1000} | .linux.maskedPaths=[] | .linux.readonlyPaths=[]'),
    },
    "apparmor": {
        Engine.DOCKER: "docker run --security-opt apparmor=unconfined ...",
        Engine.PODMAN: "podman run --security-opt apparmor=unconfined ...",
        Engine.KUBERNETES: "kubectl explain pod.spec.securityContext.appArmorProfile  # and set its type to Unconfined",
        Engine.OCI: _jq("del(.process.apparmorProfile)"),
    },
    "selinux": {
        Engine.DOCKER: "docker run --security-opt label=disable ...",
        Engine.PODMAN: "podman run --security-opt label=disable ...",
        Engine.KUBERNETES: "kubectl explain pod.spec.securityContext.seLinuxOptions  # and set its type to spc_t",
        Engine.OCI: _jq("del(.process.selinuxLabel)"),
    },
    "user": {
        Engine.DOCKER: "docker run --user 1000:1000 ...",
        Engine.PODMAN: "podman run --user 1000:1000 ...",
        Engine.KUBERNETES: "kubectl explain pod.spec.securityContext.runAsUser  # and set it to 1000",
        Engine.OCI: _jq('.process.user={"uid":1000,"gid":1000}'),
    },
    "cgroup": {
        Engine.DOCKER: "docker run --cgroupns=private --security-opt writable-cgroups=true ...  # Docker 28 or newer",
        Engine.PODMAN: "podman run --cgroupns=private --security-opt unmask=/sys/fs/cgroup ...",
        Engine.KUBERNETES: "leeward status  # is what it says; Kubernetes hands no cgroups to its containers",
        Engine.OCI: _jq('(.mounts[] | select(.destination=="/sys/fs/cgroup") | .options) -= ["ro"]'),
    },
    # Version 2 lets nobody share a group that is divided: whoever starts a daemon from a shell is in it too.
    "alone": {
        Engine.DOCKER: "docker run ... IMAGE leeward daemon run  # as the container's first process",
        Engine.PODMAN: "podman run ... IMAGE leeward daemon run  # as the container's first process",
        Engine.KUBERNETES: "kubectl explain pod.spec.containers.command  # and have it be leeward daemon run",
        Engine.OCI: _jq('.process.args=["leeward","daemon","run"]'),
    },
    "chown": {
        Engine.DOCKER: "docker run --cap-add CHOWN ...",
        Engine.PODMAN: "podman run --cap-add CHOWN ...",
        Engine.KUBERNETES: "kubectl explain pod.spec.containers.securityContext.capabilities  # and add CHOWN",
        Engine.OCI: _jq('.process.capabilities |= map_values(. + ["CAP_CHOWN"] | unique)'),
    },
}


def option(facts: Facts, subject: str) -> str:
    """
    The line that opens the container to *subject*, or "" where there is no container.
    """
    return _OPTIONS[subject].get(facts.engine, "")


def sudo(facts: Facts) -> str:
    """
    What comes before a command that only root can give.
    """
    return "" if facts.root else "sudo "


def sysctl(facts: Facts, setting: str) -> str:
    """
    The line for a switch, e.g. "user.max_user_namespaces=15000".
    """
    return f"{sudo(facts)}sysctl -w {setting}" + ("  # on the container's host" if facts.engine else "")


def apparmor_restriction(facts: Facts) -> str:
    """
    Ubuntu's: user namespaces for programs that have a profile. Ours is shipped.
    """
    load = (f"leeward doctor --profile apparmor | {sudo(facts)}tee {APPARMOR_FILE} >/dev/null && "
            f"{sudo(facts)}apparmor_parser -r {APPARMOR_FILE}")
    if facts.engine in (Engine.DOCKER, Engine.PODMAN):
        return f"{load}  # on the container's host; and then: {facts.engine} run --security-opt apparmor=leeward ..."
    return load + ("  # on the container's host, whose profile `leeward` the container needs" if facts.engine else "")


def security_module(facts: Facts) -> str:
    """
    Where a module's refusal is EACCES, what lifts it; "" where no module is known to be on this process.
    """
    if facts.selinux:
        return option(facts, "selinux") or (
            f"{sudo(facts)}ausearch -m avc -ts recent --raw | audit2allow -M leeward && "
            f"{sudo(facts)}semodule -i leeward.pp")
    if facts.apparmor:
        if facts.restricted:
            return apparmor_restriction(facts)
        return option(facts, "apparmor") or f"start leeward outside the AppArmor profile {facts.label.split(' ')[0]}"
    return ""


def outer_filter(facts: Facts) -> str:
    """
    Where a seccomp filter on this very process is the likely cause, what lifts it.
    """
    if not facts.filtered:
        return ""
    return option(facts, "seccomp") or "start leeward outside the seccomp filter that this process is under"


def kernel(facts: Facts, otherwise: str = NEWER) -> str:
    """
    Where the kernel itself lacks something.
    """
    if Kernel.GVISOR is facts.kernel:
        return "docker run --runtime=runc ...  # in the place of runsc; or leeward on the host, or in a virtual machine"
    if Kernel.WSL1 is facts.kernel:
        return "wsl.exe --set-version \"$WSL_DISTRO_NAME\" 2"
    if Kernel.WSL2 is facts.kernel:
        return "wsl.exe --update"
    return otherwise


def boot_parameter(facts: Facts, parameter: str) -> str:
    """
    The line that has the host boot with *parameter*.
    """
    if facts.engine:
        return f"boot the container's host with {parameter}"
    if Kernel.WSL2 is facts.kernel:
        setting = f"[wsl2]`nkernelCommandLine={parameter}"
        return f"powershell.exe 'Add-Content $env:USERPROFILE\\.wslconfig \"{setting}\"' && wsl.exe --shutdown"
    root = sudo(facts)
    if "debian" in facts.os:
        setting = f"GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {parameter}\""
        return (f"echo '{setting}' | {root}tee /etc/default/grub.d/leeward.cfg && {root}update-grub"
                "  # and boot anew")
    if "fedora" in facts.os:
        return f"{root}grubby --update-kernel=ALL --args={parameter}  # and boot anew"
    return f"boot with {parameter} on the kernel's command line"


def delegation(facts: Facts) -> str:
    """
    A cgroup subtree of one's own.
    """
    if facts.engine:
        for reason, subject in (("EBUSY", "alone"), ("CAP_CHOWN", "chown")):
            if reason in dict(facts.passed_over).get("v2", ""):
                return option(facts, subject)
        refused = any("EACCES" in why for _, why in facts.passed_over)
        if refused and facts.root:
            return boot_parameter(facts, "systemd.unified_cgroup_hierarchy=1")  # root in it has no say on version 1
        return "run leeward as the container's root" if refused else option(facts, "cgroup")
    if "controller not delegated" in facts.driver_detail.get("cpu", ""):
        return (f"printf '[Service]\\nDelegate=cpu memory pids\\n' | {sudo(facts)}env SYSTEMD_EDITOR=tee "
                "systemctl edit user@.service  # then log in anew")
    on_v1 = not facts.root and "no writable hierarchy" not in dict(facts.passed_over).get("v1", "")
    if Kernel.WSL2 is facts.kernel:
        if on_v1:
            return boot_parameter(facts, "cgroup_no_v1=all")
        return f"printf '[boot]\\nsystemd=true\\n' | {sudo(facts)}tee -a /etc/wsl.conf && wsl.exe --shutdown"
    if on_v1:
        return ("sudo leeward daemon start  # the controllers are on version 1, which root alone may divide; "
                "or boot with systemd.unified_cgroup_hierarchy=1")
    return f"systemd-run {'' if facts.root else '--user '}--scope -p Delegate=yes leeward daemon run"
