#!/bin/sh
# The unit tests of the shim and of what decides by architecture, in the wheel for aarch64, run by qemu's user emulation.
#
#     sh packaging/emulate.sh PYTHON WHEEL [PYTEST ARGUMENTS]
#
# PYTHON is this machine's, with pip and pytest's settings at hand; WHEEL is for manylinux and aarch64. The interpreter
# is Debian's for arm64, of packages that are unpacked into .venv-aarch64 and installed nowhere; the
# libraries are PyPI's wheels. The emulator hasn't got seccomp(2), namespaces or Landlock: only unit tests run there.
set -eu
cd -- "$(dirname -- "$0")/.."
here=$(pwd -P)
python=$1 wheel=$2
shift 2
work="$here/.venv-aarch64"
root="$work/root" site="$work/site"

say() { printf 'emulate: %s\n' "$*" >&2; }

# Debian's index for arm64, beside the system's own, which isn't touched.
interpreter() {
	[ ! -e "$work/.interpreter" ] || return 0
	say "unpacking Debian's python3 for arm64"
	rm -rf "$work"
	mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$root"
	: >"$work/apt/status"
	cat >"$work/apt/apt.conf" <<-CONFIGURATION
		APT::Architecture "arm64";
		APT::Architectures { "arm64"; };
		APT::Sandbox::User "";
		Dir::State "$work/apt";
		Dir::State::lists "$work/apt/lists";
		Dir::State::status "$work/apt/status";
		Dir::Cache "$work/apt";
		Dir::Cache::archives "$work/apt/archives";
		Debug::NoLocking "1";
	CONFIGURATION
	export APT_CONFIG="$work/apt/apt.conf"
	apt-get update -qq </dev/null
	apt-get install -y -qq --no-install-recommends --download-only python3 libseccomp2 </dev/null >/dev/null
	unset APT_CONFIG
	for package in "$work"/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
	: >"$work/.interpreter"
}

# A script, which that interpreter can start too: the kernel can't start a program for another architecture.
script() {
	cat >"$work/python" <<-SCRIPT
		#!/bin/sh
		exec qemu-aarch64 -L "$root" -E PYTHONPATH="\${PYTHONPATH:-$site}" -E LD_LIBRARY_PATH=/usr/lib/aarch64-linux-gnu \\
			"$(readlink -f "$root/usr/bin/python3")" -P "\$@"
	SCRIPT
	chmod +x "$work/python"
}

# What the tests import, for that interpreter.
libraries() {
	version=$("$work/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	rm -rf "$site"
	say "installing libraries for Python $version on aarch64"
	"$python" - >"$work/requirements.txt" <<-'PYTHON'
		import tomllib
		project = tomllib.load(open("pyproject.toml", "rb"))["project"]
		wanted = ("hypothesis", "pyseccomp", "pytest")
		print(*project["dependencies"], sep="\n")
		print(*(name for name in project["optional-dependencies"]["test"] if name.startswith(wanted)), sep="\n")
	PYTHON
	"$python" -m pip install -q --target "$site" --only-binary=:all: --python-version "$version" \
		--platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 -r "$work/requirements.txt"
	# What libseccomp, the tests' witness, may offer it asks the kernel, through a call that the emulator hasn't got.
	cat >"$site/sitecustomize.py" <<-'PYTHON'
		import ctypes
		ctypes.CDLL("libseccomp.so.2").seccomp_api_set(6)
	PYTHON
	echo "import sys; sys.executable = '$work/python'" >>"$site/sitecustomize.py"
}

interpreter
script
libraries
"$python" -m zipfile -e "$wheel" "$site"
say "running the tests"
[ $# != 0 ] || set -- tests/unit/_native tests/unit/isolation/seccomp tests/unit/wire
"$work/python" -m pytest -q -p no:cacheprovider --timeout 3600 "$@"
