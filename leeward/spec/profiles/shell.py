"""The profile `shell`: the host's files, read-only, without secrets and sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from leeward.base.dataclass import replace
from leeward.spec.folders import EXAMPLES, SECRET_FILES, within
from leeward.spec.pool_key import SHELL
from leeward.spec.profiles.profile import Profile
from leeward.spec.sandbox import Bind, SandboxSpec, Scratch, Symlink

PROFILE = Profile(about="The whole host, read-only, without its secrets and sockets; /tmp, /var and /run of its own, no"
                        " network.", limits={"time": 60.0})

#: Folders that a sandbox has for itself, in place of the host's. A current folder in one of them is still shown.
OWN = ("/workspace", "/tmp", "/var", "/run", "/dev/shm")
#: Names in the root that are never the host's.
_NOT_SHOWN = frozenset((*(place.split("/")[1] for place in OWN), "proc", "sys", "dev", "lost+found"))

#: Variables that a client passes on. Names that end in * stand for all that begin so.
PASSED = ("PATH", "HOME", "USER", "TERM", "LANG", "LC_*", "SHELL", "EDITOR", "VISUAL", "PAGER", "COLORTERM")

#: Variables of jobs that are left out: they name a user and a home that don't exist in this sandbox.
_NOT_SET = ("HOME", "USER", "LOGNAME")

#: What is hidden in the current folder. A pattern after a "!" is of files that are shown though another one fits them.
SECRETS_HERE = (*SECRET_FILES, *(f"!*{each}" for each in EXAMPLES))
#: What is hidden in the caller's home folder. A name may be a pattern; what isn't there yet is hidden as well.
SECRETS = (
    # keys, and programs that sign with them
    ".ssh", ".gnupg", ".password-store", ".config/op", ".config/sops", ".config/age", ".pki",
    # clouds and clusters
    ".aws", ".azure", ".config/gcloud", ".config/doctl", ".config/rclone", ".kube", ".boto", ".s3cfg", ".vault-token",
    ".terraform.d", ".oci",
    # registries, forges and models
    ".docker", ".config/containers/auth.json", ".netrc", ".pypirc", ".npmrc", ".yarnrc*", ".gem/credentials",
    ".cargo/credentials*", ".m2/settings*.xml", ".gradle/gradle.properties", ".git-credentials",
    ".config/git/credentials", ".config/gh", ".config/glab-cli", ".config/hub", ".cache/huggingface/token",
    ".huggingface", ".config/io.datasette.llm", ".claude.json", ".claude/.credentials.json", ".codex/auth.json",
    ".config/anthropic", ".config/openai",
    # databases
    ".pgpass", ".my.cnf", ".mylogin.cnf",
    # histories
    ".*_history", ".*_history-*", ".*history", ".lesshst", ".viminfo", ".local/share/fish", ".local/share/nvim/shada",
    ".local/state/leeward", ".config/fish/fish_history",
    # keyrings, and access to the display
    ".local/share/keyrings", ".local/share/kwalletd", ".gnome2/keyrings", ".Xauthority", ".ICEauthority", ".dbus",
    # browsers and mail
    ".mozilla", ".thunderbird", ".librewolf", ".config/google-chrome*", ".config/chromium*", ".config/BraveSoftware",
    ".config/microsoft-edge*", ".config/vivaldi*", ".config/opera*", "snap", ".var",
    *SECRETS_HERE,
)


def passed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of *environment* that a client passes on."""
    return {name: value for name, value in environment.items() if any(fnmatchcase(name, each) for each in PASSED)}


def needs_mount(cwd: str) -> bool:
    """Whether *cwd* lies in a folder that a sandbox has for itself."""
    return any(within(cwd, place) and cwd != place for place in OWN)


def hidden(homes: Sequence[str], cwd: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names to hide, by folder, the outermost folder first. A name may be a path below the folder."""
    rows: dict[str, tuple[str, ...]] = {}
    for folder, names in (*((home, SECRETS) for home in homes), (cwd, SECRETS_HERE)):
        if folder.startswith("/") and folder != "/":
            rows[folder] = tuple(dict.fromkeys((*rows.get(folder, ()), *names)))
    return sorted(rows.items(), key=lambda row: row[0].count("/"))


def never_shown(path: str) -> bool:
    """Whether *path*, in the root of the host, is never shown: a folder that a sandbox has for itself, or a hidden name."""
    name = path.split("/")[1]
    return name in _NOT_SHOWN or (path.count("/") == 1 and name.startswith("."))


#: Folders of the root that a sandbox of root's shows as everybody reads them: what root alone reads there are secrets.
_PUBLIC = ("/etc", "/boot", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


def owners_own(path: str) -> bool:
    """Whether root's sandbox reads what root reads in the folder *path*, in the root of the host."""
    return path not in _PUBLIC and not never_shown(path)


def shell(spec: SandboxSpec, binds: Sequence[Bind], links: Sequence[Symlink], *, uid: int) -> SandboxSpec:
    """Make the profile for one host from *spec*, the one for Python, with *binds* of the host and its *links* elsewhere."""
    there = [*(bind.target for bind in binds), *(link.target for link in links)]
    view = spec.view
    more = [bind for bind in view.binds if bind.device or not any(within(bind.target, place) for place in there)]
    variables = tuple((name, value) for name, value in spec.environment if name not in _NOT_SET)
    return replace(spec, profile=SHELL, uid=uid, gid=uid, host=True, environment=variables, view=replace(
        view,
        binds=(*binds, *more),
        texts=tuple(text for text in view.texts if within(text.target, "/sys")),
        links=(*links, *(link for link in view.links if within(link.target, "/dev"))),
        scratch=Scratch(OWN)))
