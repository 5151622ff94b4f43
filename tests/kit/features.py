"""
What this machine offers: one probe for each feature that a test may need.

Runs in:   the tests.
Why ours:  these look for themselves and import nothing of leeward, so a wrong probe there
           can't hide a test here.

A requirement is a feature's name, or name>=version: "landlock>=4", "kernel>=6.12".
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import importlib.util
import os
import platform
import pwd
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from kit import agent_programs

ROOT = Path(__file__).resolve().parents[2]

#: Is this a guest of tests/vm? There a processor is software.
IN_GUEST = Path("/leeward-vm").exists()

#: Where programs of the system are that a user has not in PATH.
SBIN = "/usr/sbin:/usr/local/sbin"

#: The factor by which all time-outs are multiplied on this machine.
SLOWER = 6 if IN_GUEST else 1

#: A version, e.g. (6, 12); (1,) where there are no versions; () where the feature is absent.
Version = tuple[int, ...]

PRESENT: Version = (1,)
ABSENT: Version = ()


def present(condition: object) -> Version:
    """Return the version of a feature that has no versions: (1,) if it is there, else ()."""
    return PRESENT if condition else ABSENT


def _kernel() -> Version:
    return tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def _syscall(number: int, *arguments: int | None) -> int:
    """Return the result of a system call, or -errno. Only for calls with the same number on every architecture."""
    libc = ctypes.CDLL(None, use_errno=True)
    got = int(libc.syscall(ctypes.c_long(number), *(ctypes.c_void_p(argument) for argument in arguments)))
    return -ctypes.get_errno() if got < 0 else got


def _not_emulated() -> Version:
    said = subprocess.run(["uname", "-m"], check=True, capture_output=True, text=True).stdout  # a program of the machine's
    return present(platform.machine() == said.strip())


def _landlock() -> Version:
    create_ruleset, version = 444, 1
    abi = _syscall(create_ruleset, None, 0, version)
    return (abi,) if abi > 0 else ABSENT


def _io_uring() -> Version:
    # Without parameters it fails after the check whether it is allowed at all.
    return present(-errno.EFAULT == _syscall(425, 1, None))


def _uring_transport() -> Version:
    return present(_io_uring() and _kernel() >= (5, 19) and Path("/usr/include/liburing.h").exists())


def _user_namespaces() -> Version:
    unshare = shutil.which("unshare")
    return present(unshare and 0 == subprocess.run(
        [unshare, "--user", "true"], check=False, stderr=subprocess.DEVNULL).returncode)


def _seccomp_notify() -> Version:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    return present(actions.exists() and "user_notif" in actions.read_text().split())


def own_cgroups(mounts: str, groups: str) -> dict[str, Path]:
    """
    The folder of the group that a process is in, by v1 controller, and "" for v2.

    Args:
        mounts: /proc/self/mountinfo.
        groups: /proc/self/cgroup.
    """
    folders = {}
    for mount in mounts.splitlines():
        left, _, right = mount.partition(" - ")
        kind, _, options = right.split(" ")[:3]
        shown, target = left.split(" ")[3:5]
        for group in groups.splitlines():
            _, controllers, path = group.split(":", 2)
            matches = "cgroup2" == kind if not controllers else (
                "cgroup" == kind and set(controllers.split(",")) <= set(options.split(",")))
            if matches:
                inner = path.removeprefix(shown) if "/" != shown else path
                folders.update(dict.fromkeys(controllers.split(","), Path(target + "/" + inner.strip("/"))))
    return folders


def _cgroups() -> dict[str, Path]:
    return own_cgroups(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())


def _cgroup_v2() -> Version:
    folder = _cgroups().get("")
    return present(folder and os.access(folder, os.W_OK))


def _cgroup_v2_controllers() -> Version:
    folder = _cgroups().get("")
    offered = folder / "cgroup.controllers" if folder else Path("/nonexistent")
    return present(_cgroup_v2() and offered.exists()
                   and {"memory", "pids", "cpu"} <= set(offered.read_text().split()))


def _cgroup_v1_controllers() -> Version:
    folders = _cgroups()
    return present(all(name in folders and os.access(folders[name], os.W_OK) for name in ("memory", "pids", "cpu")))


def _freezer_v1() -> Version:
    folder = _cgroups().get("freezer")
    return present(folder is not None and os.access(folder, os.W_OK))


def _ordinary_user() -> Version:
    return present(0 != os.geteuid() or shutil.which("useradd"))


def system_python() -> Path | None:
    """An interpreter that every user of this machine can run: 3.11 or newer, with headers or not."""
    asks = "import sys, venv; sys.exit(sys.version_info < (3, 11))"
    for path in (Path("/usr/bin/python3"), Path("/usr/local/bin/python3")):
        if path.exists() and 0 == subprocess.run([path, "-I", "-c", asks], check=False,
                                                 stderr=subprocess.DEVNULL).returncode:
            return path
    return None


def _sanitizers() -> Version:
    compiler = shutil.which("gcc")
    if not compiler:
        return ABSENT
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    return present(os.path.isabs(found.stdout.strip()))


def other_headers() -> Path:
    """Where Debian puts the C library's headers for the architecture that this machine isn't: libc6-dev-arm64-cross."""
    return Path("/usr", "x86_64-linux-gnu" if "aarch64" == platform.machine() else "aarch64-linux-gnu", "include")


def clang() -> str | None:
    """Return the newest clang among the names that Debian gives it, or else "clang"."""
    names = ("clang", *(f"clang-{version}" for version in range(21, 13, -1)))
    return next(filter(None, map(shutil.which, names)), None)


def _client_node() -> Version:
    return present(shutil.which("node") and (ROOT / ".venv-client-node/node_modules/e2b").exists())


def _sshd() -> Version:
    """Root's sshd needs a user for what it doesn't do as root; who comes by ssh needs a shell."""
    if os.path.basename(pwd.getpwuid(os.geteuid()).pw_shell) in ("nologin", "false"):
        return ABSENT
    with contextlib.suppress(KeyError):
        return present(all(map(shutil.which, ("ssh", "ssh-keygen"))) and shutil.which("sshd", path=SBIN)
                       and (os.geteuid() or pwd.getpwnam("sshd")))
    return ABSENT


def _veth() -> Version:
    """Two network interfaces with a cable, between network namespaces."""
    name = f"lwp{os.getpid()}"
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "openssl", "unshare"))):
        return ABSENT
    made = subprocess.run(["ip", "link", "add", name, "type", "veth"], capture_output=True, check=False, timeout=30)
    if not made.returncode:
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False, timeout=30)
    return present(not made.returncode)


def _vite() -> Version:
    return present(shutil.which("node") and (ROOT / ".venv-vite/node_modules/vite").exists())


def _client_mcp() -> Version:
    return present((ROOT / ".venv-client-mcp/node_modules/.bin/mcp-inspector").exists())


def _environment(name: str) -> Version:
    """An environment with a framework or a client, and tests of it, whose interpreter this user may run."""
    folder = ROOT / f".venv-{name}"
    return present((folder / ".setup").exists() and os.access(folder / "bin/python", os.X_OK))


def _libfuzzer() -> Version:
    compiler = clang()
    if not compiler:
        return ABSENT
    told = subprocess.run([compiler, "-print-resource-dir"], check=True, capture_output=True, text=True)
    return present(list(Path(told.stdout.strip()).glob("lib/*/libclang_rt.fuzzer*.a")))


def rust() -> str | None:
    """
    Return the folder of a cargo and a rustc that run. The first ones on the PATH may be proxies for a toolchain that
    isn't installed.
    """
    found = shutil.which("cargo")
    for folder in ([os.path.dirname(found)] if found else []) + ["/usr/bin"]:
        tools = [Path(folder, name) for name in ("cargo", "rustc")]
        if all(tool.exists() and 0 == subprocess.run([tool, "--version"], check=False, capture_output=True).returncode
               for tool in tools):
            return folder
    return None


def _debian(name: str) -> Version:
    return present(any(Path("/var/lib/dpkg/info", f"{name}{each}.list").exists() for each in ("", ":amd64", ":arm64")))


def _node() -> Version:
    if not shutil.which("node"):
        return ABSENT
    said = subprocess.run(["node", "--version"], check=False, capture_output=True, text=True).stdout
    return tuple(int(part) for part in said.strip().lstrip("v").split("."))


def node24() -> Path | None:
    """The folder of a Node 24's program, of the packages node-linux-*, as ./dev test installs them."""
    return next(iter((ROOT / ".venv-node24/node_modules").glob("node-linux-*/bin")), None)


def _extra_web() -> Version:
    return present(all(map(importlib.util.find_spec, ("starlette", "uvicorn", "jinja2", "websockets"))))


def _chromium() -> Version:
    drives = ("playwright", "httpx2")
    return present(shutil.which("chromium") and _extra_web() and all(map(importlib.util.find_spec, drives)))


def _inotify() -> Version:
    def most(name: str) -> int:
        return int(Path("/proc/sys/fs/inotify", name).read_text())

    return present(os.access("/proc/sys/user/max_inotify_watches", os.F_OK)
                   and most("max_user_instances") >= 32 and most("max_user_watches") >= 32768)


def _koffi() -> Version:
    return present(shutil.which("node") and (ROOT / ".venv-node/node_modules/koffi").exists())


def _libleeward() -> Version:
    # Of an installation without a compiler there is none. Not by importing it: see above.
    found = importlib.util.find_spec("leeward")
    places = found.submodule_search_locations if found else None
    return present(places and Path(places[0], "_native/sdk/lib/libleeward.so.0").exists())


def _may_set_core_pattern() -> Version:
    # The whole host's: only where a run was told that it may change such things for a moment.
    path = "/proc/sys/kernel/core_pattern"
    return present(os.environ.get("LEEWARD_LONG") and 0 == os.geteuid() and os.access(path, os.W_OK))


def _huge_pages() -> Version:
    free = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    return present(free.exists() and (int(free.read_text()) >= 4 or (
        0 == os.geteuid() and os.access("/proc/sys/vm/nr_hugepages", os.W_OK))))


def outside_tmp() -> str:
    """A folder of the host that is ours to write, and in none of those that a sandbox has for itself, of any profile."""
    given = os.environ.get("LEEWARD_TESTS_OUTSIDE_TMP")  # kit/beside.py, whose user has his home below /tmp
    homes = str(Path.home()), pwd.getpwuid(os.getuid()).pw_dir  # as another HOME may be
    return given or next((each for each in ("/opt", *homes) if os.access(each, os.W_OK)
                          and not os.path.realpath(each).startswith(("/tmp/", "/var/tmp/"))), homes[0])


def _images() -> Version:
    # Without user attributes on a tmpfs a disk has to have them; root's layers have id maps, in an overlay since 5.19.
    if _kernel() >= (6, 6):
        return PRESENT
    try:
        with tempfile.TemporaryDirectory(dir=outside_tmp()) as own:  # a sticky folder's attributes are its owner's alone
            os.setxattr(own, "user.leeward", b"y")
    except OSError:
        return ABSENT
    return present(_kernel() >= ((5, 13) if os.geteuid() else (5, 19)))


def _may_set_switches() -> Version:
    return present((IN_GUEST or os.environ.get("LEEWARD_LONG")) and 0 == os.geteuid()
                   and os.access("/proc/sys/user/max_user_namespaces", os.W_OK))


def _bootable_kernels() -> Version:
    # All that tests/vm fetches, and what boots it. Not in a guest of its own.
    if os.geteuid() or "x86_64" != platform.machine() or IN_GUEST:
        return ABSENT
    there = (shutil.which("qemu-system-x86_64"), Path("/usr/lib/qemu/virtiofsd").exists(),
             Path("/lib/systemd/systemd").exists())
    return present(all(there) and all((ROOT / ".venv-vm" / kernel / "release").exists()
                                      for kernel in ("5.10", "6.1", "6.12")))


def _in_usr(name: str) -> Version:
    return present(any(Path(folder, name).exists() for folder in ("/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin")))


def _pip_in_reach() -> Version:
    # Of the interpreter that jobs get: in its standard library, as a wheel, or among its packages.
    library = Path(sysconfig.get_path("stdlib"))
    debian = "/usr" == sys.base_prefix and Path("/usr/lib/python3/dist-packages/pip").exists()
    return present(debian or list(library.glob("ensurepip/_bundled/pip-*.whl")))


def _status(name: str) -> str:
    text = Path("/proc/self/status").read_text()
    return next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:"))


def _unreduced() -> Version:
    ptrace, admin = 19, 21
    has = int(_status("CapEff"), 16)
    return present(os.geteuid() or (has >> ptrace & 1 and has >> admin & 1))


def _whole_root() -> Version:
    mounts = (line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return present(any(("/", "/") == (shown, at) for _, _, _, shown, at, *_ in mounts))


#: The features by name. A test may be skipped only for a feature of this table.
TABLE: dict[str, Callable[[], Version]] = {
    "axe": lambda: present((ROOT / ".venv-axe/node_modules/axe-core/axe.min.js").exists()),  # by ./dev test, from npm
    "bootable-kernels": _bootable_kernels,
    "c++": lambda: present(shutil.which("g++")),
    "cgroup-v1-controllers": _cgroup_v1_controllers,  # memory, pids and cpu on v1, and we may make groups
    "cgroup-v1-freezer": _freezer_v1,                 # which holds a process that not even SIGKILL ends
    "cgroup-v2": _cgroup_v2,                          # a v2 tree that we may make groups in, whatever it controls
    "cgroup-v2-controllers": _cgroup_v2_controllers,  # the same with memory, pids and cpu delegated
    # memory, pids and cpu counted, by either version; without root, v1 groups can't be made
    "controllers": lambda: _cgroup_v2_controllers() or present(os.geteuid() == 0 and _cgroup_v1_controllers()),
    "chromium": _chromium,                            # Debian's, and what drives it
    "clang": lambda: present(clang()),
    "compiler": lambda: present(shutil.which("gcc") and Path(sysconfig.get_path("include"), "Python.h").exists()),
    "cpython-tests": lambda: present(importlib.util.find_spec("test.test_json")),
    "crun": lambda: present(shutil.which("crun")),     # makes containers; Debian: crun
    "debian": lambda: present(shutil.which("apt-get") and shutil.which("dpkg-deb")),
    # Debian's packages of these names: what images in tests are made of, and where one is pulled from
    **{f"debian-{name}": functools.partial(_debian, name) for name in (
        "docker-registry", "nodejs", "postgresql-15", "redis-server", "sudo")},
    "extra-mcp": lambda: present(importlib.util.find_spec("mcp")),
    "extra-serve": lambda: present(importlib.util.find_spec("google") and importlib.util.find_spec("google.protobuf")),
    "extra-web": _extra_web,
    "go": lambda: present(shutil.which("go")),         # Debian: golang-go
    "guest": lambda: present(IN_GUEST),
    "huge-pages": _huge_pages,                        # a pool of them, or root, who may make one for a test
    "images": _images,                                # sandboxes with an image's root
    "inotify": _inotify,                              # as much of it as two sandboxes get: Linux 5.11 has it
    "io-uring": _io_uring,
    "kernel": _kernel,
    "koffi": _koffi,                                  # Node and, by ./dev test, koffi from npm
    # For keepers' hot pages: systemd and Linux 5.16 give 8 MiB, older kernels by themselves 64 KiB.
    "locked-memory": lambda: present(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] >= 4 << 20),
    "landlock": _landlock,                            # its version is the ABI
    "landlock-missing": lambda: present(not _landlock()),
    "libfuzzer": _libfuzzer,                          # clang with its runtime: clang-14, libclang-rt-14-dev
    "may-set-core-pattern": _may_set_core_pattern,    # root, and LEEWARD_LONG is set
    "libleeward": _libleeward,                        # in the installation that is tested
    "may-set-switches": _may_set_switches,            # likewise, or in a guest; those of the whole kernel
    "nix": lambda: present(shutil.which("nix-instantiate")),
    "ns-last-pid": lambda: present(Path("/proc/sys/kernel/ns_last_pid").exists()),  # the next process's number
    "node24": lambda: present(node24()),              # by ./dev test, from npm
    "node": _node,                                    # its version; Debian: nodejs
    "not-emulated": _not_emulated,                    # not the processor, by qemu-user, as ./dev emulate has it
    "not-root": lambda: present(0 != os.geteuid()),
    "mkdocs": lambda: present((ROOT / ".venv-docs/.setup").exists()),  # by ./dev test
    "ordinary-user": _ordinary_user,                  # to be one, or to make one
    "processors": lambda: (len(os.sched_getaffinity(0)),),  # its version is their number
    "python-prctl": lambda: present(importlib.util.find_spec("_prctl")),
    "framework-langchain": lambda: _environment("framework-langchain"),
    "framework-pydantic-ai": lambda: _environment("framework-pydantic-ai"),
    "framework-llm": lambda: _environment("framework-llm"),
    "framework-ray": lambda: _environment("framework-ray"),
    "framework-inspect-ai": lambda: _environment("framework-inspect-ai"),  # environments, by ./dev test
    "framework-jupyter": lambda: _environment("framework-jupyter"),
    "jupyterlab": lambda: present((ROOT / ".venv-framework-jupyter/bin/jupyter-lab").exists()),
    "framework-autogen": lambda: _environment("framework-autogen"),
    "framework-strands": lambda: _environment("framework-strands"),
    "framework-swe-rex": lambda: _environment("framework-swe-rex"),
    "framework-mini-swe-agent": lambda: _environment("framework-mini-swe-agent"),  # this and those below: LEEWARD_LONG=1
    "framework-nemo-gym": lambda: _environment("framework-nemo-gym"),
    "framework-harbor": lambda: _environment("framework-harbor"),
    "framework-dspy": lambda: _environment("framework-dspy"),
    "framework-google-adk": lambda: _environment("framework-google-adk"),
    "framework-verifiers": lambda: _environment("framework-verifiers"),
    "kubernetes": lambda: _environment("kubernetes"),
    "framework-ag2": lambda: _environment("framework-ag2"),
    "framework-agent-framework": lambda: _environment("framework-agent-framework"),
    "framework-crewai": lambda: _environment("framework-crewai"),
    "client-crewai-tools": lambda: _environment("client-crewai-tools"),
    "client-litellm": lambda: _environment("client-litellm"),
    "installers": lambda: present(any((ROOT / ".venv-installers").glob(".all-*"))),  # by ./dev test
    "client-e2b": lambda: _environment("client-e2b"),
    "client-langchain-e2b": lambda: _environment("client-langchain-e2b"),
    "client-open-webui": lambda: present((ROOT / ".venv-client-open-webui/source").exists()),
    "client-openai-agents": lambda: _environment("client-openai-agents"),
    "client-opensandbox": lambda: _environment("client-opensandbox"),
    "client-sandbox-fusion": lambda: _environment("client-sandbox-fusion"),
    "client-smolagents": lambda: _environment("client-smolagents"),  # as the frameworks
    "client-node": _client_node,                      # the same from npm
    "sshd": _sshd,                                    # of openssh-server
    "srt": lambda: present((ROOT / ".venv-client-node/node_modules/.bin/srt").exists()  # from npm
                            and all(map(shutil.which, ("node", "bwrap", "socat", "rg")))),
    "veth": _veth,                                    # and root, to make another network
    "vite": _vite,                                    # a dev server, from npm
    "client-mcp": _client_mcp,                        # the conformance suite and the Inspector
    "agent-aider": lambda: present(agent_programs.aider()),  # by LEEWARD_LONG=1 ./dev test: aider-chat
    "agent-claude": lambda: present(agent_programs.claude()),  # by ./dev test: the wheel claude-agent-sdk from PyPI
    "agent-codex": lambda: present(agent_programs.codex()),    # by ./dev test: @openai/codex from npm, and a Node
    "agent-gemini": lambda: present(agent_programs.gemini()),  # by ./dev test: @google/gemini-cli from npm, and a Node
    "agent-copilot": lambda: present(agent_programs.copilot()),  # this and qwen: LEEWARD_LONG=1, @github/copilot from npm
    "agent-goose": lambda: present(agent_programs.goose()),    # by ./dev test: @aaif/goose-binary-linux-x64 from npm
    "agent-qwen": lambda: present(agent_programs.qwen()),    # @qwen-code/qwen-code from npm, and a Node
    "agent-opencode": lambda: present(agent_programs.opencode()),  # by ./dev test: opencode-ai from npm
    "real-packages": lambda: present((ROOT / ".venv-realpackages/.setup").exists()),
    "preload-packages": lambda: present((ROOT / ".venv-preloadpackages/.setup").exists()),
    "other-python": lambda: present(any(ROOT.glob(".venv-python3.*/.setup"))),  # environments, by ./dev test
    "other-architecture": lambda: present(clang() and (other_headers() / "stdio.h").exists()),  # to compile for it
    "pip-in-reach": _pip_in_reach,                    # of a job, which has no packages of its own
    "pkg-config": lambda: present(shutil.which("pkg-config")),
    "root": lambda: present(0 == os.geteuid()),
    "runc": lambda: present(shutil.which("runc")),     # makes containers; Debian: runc
    "rust": lambda: present(rust()),
    "sanitizers": _sanitizers,
    "seccomp-notify": _seccomp_notify,
    "strace": lambda: present(shutil.which("strace")),
    "system-python": lambda: present(system_python()),
    "unfiltered": lambda: present("0" == _status("Seccomp")),  # what is denied here is denied by leeward's own filter
    "systemd": lambda: present(Path("/run/systemd/system").exists()),  # as the machine's first process
    "unreduced": _unreduced,                          # who is root has root's capabilities
    "typescript": lambda: present((ROOT / ".venv-typescript/.setup").exists()),  # by ./dev test
    "uring-transport": _uring_transport,              # io_uring as the daemon needs it: Linux 5.19, liburing-dev
    "user-namespaces": _user_namespaces,
    "valgrind": lambda: present(shutil.which("valgrind")),
    "whole-root": _whole_root,                        # / is not a folder of somebody else's file system
    "x86-64": lambda: present("x86_64" == platform.machine()),
}


#: Programs that the sandbox would show, if they are there: "usr-git" and so on.
IN_USR = (
    "apt", "awk", "bash", "busybox", "bzip2", "cargo", "clang", "cmake", "column", "curl", "diff", "direnv", "file",
    "find", "free",
    "g++", "gcc", "gdb", "getent", "git", "go", "gofmt", "hg", "id", "ip", "java", "javac", "jq", "kotlin", "kotlinc",
    "ldd", "less", "lscpu", "make", "mount", "nginx", "node", "npm", "openssl", "patch", "perf", "perl", "ps", "python3",
    "rev", "rg", "rustc", "script", "sqlite3", "ss", "ssh", "ssh-keygen", "strace", "strings", "tar", "tclsh", "timeout",
    "tmux", "tree", "unshare", "unzip", "uptime", "valgrind", "vim", "vmstat", "wget", "xargs", "xxd", "xz", "zip",
)
TABLE |= {f"usr-{name}": functools.partial(_in_usr, name) for name in IN_USR}


@functools.cache
def have(name: str) -> Version:
    """
    Return the version of feature *name* on this machine; the probe runs once.

    Raises:
        KeyError: TABLE has no such feature.
    """
    return TABLE[name]()


def is_met(requirement: str) -> bool:
    """
    Whether this machine has what *requirement* asks for.

    Raises:
        KeyError: it names a feature that TABLE doesn't have.
    """
    name, _, least = requirement.partition(">=")
    return have(name) >= (tuple(int(part) for part in least.split(".")) if least else PRESENT)


def shown(name: str) -> str:
    """Return in words what this machine has of feature *name*."""
    version = have(name)
    return ".".join(map(str, version)) if version else "none"
