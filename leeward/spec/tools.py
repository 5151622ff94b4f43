"""The tools of a `WorkdirSandbox`, and the Debian packages that have them."""

from __future__ import annotations

#: The tools by package. Tools that aren't in this table are in Debian's coreutils.
PACKAGES: dict[str, str] = {
    "grep": "grep", "findutils": "find xargs", "sed": "sed", "diffutils": "diff", "tar": "tar", "gzip": "gzip",
    "debianutils": "which", "hostname": "hostname", "dash": "sh", "bash": "bash", "ripgrep": "rg", "tree": "tree",
    "mawk": "awk", "bsdextrautils": "rev column", "binutils": "strings", "jq": "jq",
    "patch": "patch", "xxd": "xxd", "file": "file", "zip": "zip", "unzip": "unzip", "git": "git", "nodejs": "node",
    "curl": "curl",
}

_ORDER = (
    "cat head tail touch tee grep rg find tree sed sort uniq cut tr wc awk tac rev nl paste comm join fold column"
    " expand unexpand strings od jq diff patch base64 sha256sum sha1sum md5sum xxd ls mkdir cp mv rm du ln stat"
    " readlink rmdir split file tar gzip zip unzip git node curl echo printf env xargs basename dirname seq sleep which"
    " whoami hostname printenv date expr true false test [ sh bash")

#: All of them, in the order of the documentation.
TOOLS: tuple[str, ...] = tuple(_ORDER.split())


def package_of(tool: str) -> str:
    return next((package for package, tools in PACKAGES.items() if tool in tools.split()), "coreutils")
