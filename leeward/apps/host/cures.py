"""
The cures of `leeward doctor`: lines to type, by cause and by container engine.

Source:    docker-run(1), podman-run(1), apparmor_parser(8), wsl.conf and .wslconfig in Microsoft's documentation of WSL

A line is for a shell of the user who asked. If only a container's host can change something, a comment after # says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from leeward.apps.host.facts import Facts, HostKernel, Runtime, Service
from leeward.spec.tools import package_of

#: The names that the lines give to the files which `leeward doctor --profile` prints.
SECCOMP_FILE = "leeward-seccomp.json"
APPARMOR_FILE = "/etc/apparmor.d/leeward"

NEWER = "install Linux 5.13 or newer"


def _jq(change: str) -> str:
    """Return a jq command, for users who wrote the container's config.json by hand."""
    return f"jq '{change}' config.json >new.json && mv new.json config.json"


def _run(options: str) -> dict[Runtime, str]:
    return {engine: f"{engine} run {options}" for engine in (Runtime.DOCKER, Runtime.PODMAN)}


#: The options that a container needs, by engine.
_OPTIONS: dict[str, dict[Runtime, str]] = {
    "seccomp": {
        Runtime.DOCKER: f"docker run --rm IMAGE leeward doctor --profile seccomp >{SECCOMP_FILE}; "
                        f"docker run --security-opt seccomp={SECCOMP_FILE} ... IMAGE",
        Runtime.PODMAN: f"podman run --rm IMAGE leeward doctor --profile seccomp >{SECCOMP_FILE}; "
                        f"podman run --security-opt seccomp={SECCOMP_FILE} ... IMAGE",
        Runtime.KUBERNETES: f"leeward doctor --profile seccomp >{SECCOMP_FILE}  # into the node's seccomp folder; and"
                            " in the pod's securityContext a seccompProfile of type Localhost that names it",
        Runtime.OCI: "leeward doctor --profile seccomp  # is what belongs into linux.seccomp of config.json",
    },
    # The host's root could write to /proc/sys then, so never without another user.
    "proc": {
        Runtime.DOCKER: "docker run --user 1000:1000 --security-opt systempaths=unconfined ...",
        Runtime.PODMAN: "podman run --user 1000:1000 --security-opt unmask=ALL ...",
        Runtime.KUBERNETES: "kubectl explain pod.spec.containers.securityContext.procMount  # and set it to Unmasked,"
                            " with hostUsers: false in the pod",
        Runtime.OCI: _jq('.process.user={"uid":1000,"gid":1000} | .linux.maskedPaths=[] | .linux.readonlyPaths=[]'),
    },
    "apparmor": {
        **_run("--security-opt apparmor=unconfined ..."),
        Runtime.KUBERNETES: "kubectl explain pod.spec.securityContext.appArmorProfile  # and set its type to"
                            " Unconfined",
        Runtime.OCI: _jq("del(.process.apparmorProfile)"),
    },
    "selinux": {
        **_run("--security-opt label=disable ..."),
        Runtime.KUBERNETES: "kubectl explain pod.spec.securityContext.seLinuxOptions  # and set its type to spc_t",
        Runtime.OCI: _jq("del(.process.selinuxLabel)"),
    },
    "user": {
        **_run("--user 1000:1000 ..."),
        Runtime.KUBERNETES: "kubectl explain pod.spec.securityContext.runAsUser  # and set it to 1000",
        Runtime.OCI: _jq('.process.user={"uid":1000,"gid":1000}'),
    },
    "cgroup": {
        Runtime.DOCKER: "docker run --cgroupns=private --security-opt writable-cgroups=true ...  # Docker 28 or newer",
        Runtime.PODMAN: "podman run --cgroupns=private --security-opt unmask=/sys/fs/cgroup ...",
        Runtime.KUBERNETES: "leeward status  # is what it says; Kubernetes hands no cgroups to its containers",
        Runtime.OCI: _jq('(.mounts[] | select(.destination=="/sys/fs/cgroup") | .options) -= ["ro"]'),
    },
    # Version 2 lets nobody share a group that is divided: whoever starts a daemon from a shell is in it too.
    "alone": {
        **_run("... IMAGE leeward daemon run  # as the container's first process"),
        Runtime.KUBERNETES: "kubectl explain pod.spec.containers.command  # and have it be leeward daemon run",
        Runtime.OCI: _jq('.process.args=["leeward","daemon","run"]'),
    },
    "chown": {
        **_run("--cap-add CHOWN ..."),
        Runtime.KUBERNETES: "kubectl explain pod.spec.containers.securityContext.capabilities  # and add CHOWN",
        Runtime.OCI: _jq('.process.capabilities |= map_values(. + ["CAP_CHOWN"] | unique)'),
    },
}


#: For those who can't give the engine a file.
_OPEN = ("--security-opt seccomp=unconfined", "--security-opt systempaths=unconfined", "--security-opt apparmor=unconfined")
#: All options at once, in the file of whoever starts the container.
_CONTAINERS: dict[str, str] = {
    Service.ACTIONS: f"jobs.JOB.container.options: --user 1001 {' '.join(_OPEN)}  # in the workflow; or no container",
    Service.GITLAB: 'security_opt = ["seccomp=unconfined", "systempaths=unconfined", "apparmor=unconfined"]'
                    "  # under [runners.docker] of the runner's config.toml, and an image with another user than root",
    Service.CODESPACES: f'"runArgs": [{", ".join(f"{chr(34)}{each}{chr(34)}" for each in " ".join(_OPEN).split())}]'
                        "  # in .devcontainer/devcontainer.json, and rebuild the container",
    Service.COLAB: "export LEEWARD_HOST=ssh://ME@HOST  # a daemon elsewhere: nobody can change this container's options",
    Runtime.DOCKER: f"docker run --user 1000:1000 --security-opt seccomp={SECCOMP_FILE} --security-opt"
                    " systempaths=unconfined --security-opt apparmor=unconfined --cgroupns=private --security-opt"
                    " writable-cgroups=true IMAGE",
    Runtime.PODMAN: f"podman run --user 1000:1000 --security-opt seccomp={SECCOMP_FILE} --security-opt unmask=ALL"
                    " --security-opt label=disable --cgroupns=private IMAGE",
    Runtime.KUBERNETES: 'spec: {hostUsers: false, containers: [{securityContext: {runAsUser: 1000, procMount: Unmasked,'
                        f' appArmorProfile: {{type: Unconfined}}, seccompProfile: {{type: Localhost, localhostProfile:'
                        f' {SECCOMP_FILE}}}}}}}]}}',
    Runtime.OCI: "jq --slurpfile seccomp " + SECCOMP_FILE + """ '.process.user={"uid":1000,"gid":1000} |"""
                 " .linux.maskedPaths=[] | .linux.readonlyPaths=[] | .linux.seccomp=$seccomp[0]'"
                 " config.json >new.json && mv new.json config.json",
}


def container(facts: Facts) -> str:
    """Return the options for all that a container refuses, or "" on a machine that is none."""
    alone = not facts.engine and facts.service in ("", Service.ACTIONS, Service.GITLAB)  # their virtual machines
    other = facts.kernel is HostKernel.GVISOR and not facts.service  # no option makes a Linux of it
    return "" if alone or other else _CONTAINERS.get(facts.service) or _CONTAINERS.get(facts.engine, "")


def option(facts: Facts, subject: str) -> str:
    """Return the line that starts the container with *subject* allowed, or "" outside a container."""
    return _OPTIONS[subject].get(facts.engine, "")


def sudo(facts: Facts) -> str:
    """Return the prefix of a command that needs root."""
    return "" if facts.root else "sudo "


def sysctl(facts: Facts, setting: str) -> str:
    """Return the line that sets a switch, e.g. "user.max_user_namespaces=15000"."""
    return f"{sudo(facts)}sysctl -w {setting}" + ("  # on the container's host" if facts.engine else "")


def apparmor_restriction(facts: Facts) -> str:
    """Return the cure for Ubuntu's restriction of user namespaces to programs with a profile: load leeward's profile."""
    load = (f"leeward doctor --profile apparmor | {sudo(facts)}tee {APPARMOR_FILE} >/dev/null && "
            f"{sudo(facts)}apparmor_parser -r {APPARMOR_FILE}")
    if facts.engine in (Runtime.DOCKER, Runtime.PODMAN):
        return f"{load}  # on the container's host; and then: {facts.engine} run --security-opt apparmor=leeward ..."
    return load + ("  # on the container's host, whose profile `leeward` the container needs" if facts.engine else "")


def security_module(facts: Facts) -> str:
    """Return the cure for a refusal by a security module, which is EACCES; "" if none is known to confine this process."""
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
    """Return the cure for a refusal that a seccomp filter on this process likely caused."""
    if not facts.filtered:
        return ""
    return option(facts, "seccomp") or "start leeward outside the seccomp filter that this process is under"


def kernel(facts: Facts, otherwise: str = NEWER) -> str:
    """Return the cure for a feature that the kernel lacks."""
    if facts.kernel is HostKernel.GVISOR:
        return "docker run --runtime=runc ...  # in the place of runsc; or leeward on the host, or in a virtual machine"
    if facts.kernel is HostKernel.WSL1:
        return "wsl.exe --set-version \"$WSL_DISTRO_NAME\" 2"
    if facts.kernel is HostKernel.WSL2:
        return "wsl.exe --update"
    return otherwise


def boot_parameter(facts: Facts, parameter: str) -> str:
    """Return the line that makes the host boot with *parameter*."""
    if facts.engine:
        return f"boot the container's host with {parameter}"
    if facts.kernel is HostKernel.WSL2:
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
    """Return the line that gives leeward a cgroup subtree of its own."""
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
    if facts.kernel is HostKernel.WSL2:
        if on_v1:
            return boot_parameter(facts, "cgroup_no_v1=all")
        return f"printf '[boot]\\nsystemd=true\\n' | {sudo(facts)}tee -a /etc/wsl.conf && wsl.exe --shutdown"
    if on_v1:
        return ("sudo leeward daemon start  # the controllers are on version 1, which root alone may divide; "
                "or boot with systemd.unified_cgroup_hierarchy=1")
    return f"systemd-run {'' if facts.root else '--user '}--scope -p Delegate=yes leeward daemon run"


def packages(facts: Facts, tools: Iterable[str]) -> str:
    """Return the packages of *tools*, by Debian's names."""
    names = " ".join(sorted({package_of(tool) for tool in tools}))
    if "debian" in facts.os:
        return f"{sudo(facts)}apt-get install {names}"
    return f"install what Debian calls {names}"
