"""
Code and kernels in an image, by the image's own interpreter.

Runs in:   `pack` in the zygote; `start` in a runner's process, after every lock, as a copy of the host's interpreter; then
           `BOOT` in the image's, which this process becomes by execve. So the locks stay, and the host's modules go.

The image hasn't leeward's modules, nor msgpack. The zygote has read their sources; they cross the execve in a file without a
name, together with the job, and leave no name in `sys.modules`. What an image's interpreter runs beforehand (site, files
*.pth) is the image's own.
"""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import NoReturn

#: leeward's packages that `inside` needs; and msgpack, whose compiled part is of one version of Python.
_NEEDED = ("leeward.base", "leeward.errors", "leeward.inside", "leeward.spec", "leeward.wire", "msgpack")
_COMPILED, _PURE = "msgpack._cmsgpack", "msgpack.fallback"
#: What a process of the host's interpreter does, in an image as well.
_ELSEWHERE = "leeward.inside.file_calls"
#: Of marshal: one that each Python 3 reads.
_FORMAT = 2
#: The exit code of a shell that finds no command.
_NO_COMMAND = 127
_NAMES = ("python3", "python")

#: The sources by module, whether each is a package, and nothing of that where the root isn't an image's.
_packed: dict[str, tuple[bytes, bool]] = {}
#: The object that writes states.
_alone: list[bytes] = []

#: The program of the image's interpreter; its arguments are descriptors. It runs on any Python, to say that it is too old.
BOOT = """\
import os, sys
if sys.version_info < (3, 9):
    sys.stderr.write("leeward: the image's Python is %d.%d, and code needs 3.9 or newer; run() starts it\\n"
                     % sys.version_info[:2])
    sys.stderr.flush()
    os._exit(127)
import marshal
from importlib.machinery import ModuleSpec
def boot(sources, alone, body, job, reply, door):
    class Sources:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return ModuleSpec(name, Sources, is_package=sources[name][1]) if name in sources else None
        @staticmethod
        def create_module(spec):
            return None
        @staticmethod
        def exec_module(module):
            name = module.__spec__.name
            if sys.version_info < (3, 10):
                module.zip = lambda *rows, strict=False: zip(*rows)
            exec(compile(sources[name][0], "<leeward>/" + name, "exec"), module.__dict__)
    sys.path[:] = [path for path in sys.path if path]
    sys.meta_path.insert(0, Sources)
    if sys.version_info < (3, 11):
        import enum
        class StrEnum(str, enum.Enum):
            __str__ = str.__str__
        enum.StrEnum = StrEnum
    before = {name: module for name, module in sys.modules.items() if name in sources}
    from leeward.inside import main
    sys.meta_path.remove(Sources)
    if sys.version_info < (3, 11):
        del enum.StrEnum
    for name in sources:
        sys.modules.pop(name, None)
    sys.modules.update(before)
    main.serve_in_image(body, job, reply, door, alone)
fd, *ends = map(int, sys.argv[1:])
with open(fd, "rb") as file:
    file.seek(0)
    given = marshal.load(file)
boot(*given, *ends)
"""


def pack(modules: Mapping[str, ModuleType], alone: bytes) -> None:
    """Read the sources of *modules* that the image's interpreter needs; *alone* writes its states. OSError."""
    _alone[:] = [alone]
    for name, module in modules.items():
        if name.startswith(_NEEDED) and name != _COMPILED and module.__file__ is not None:
            _packed[name] = _source(module.__file__), hasattr(module, "__path__")
    folder = os.path.dirname(modules["msgpack"].__file__ or "")
    _packed[_PURE] = _source(os.path.join(folder, "fallback.py")), False
    _packed["leeward"] = b"", True
    _packed[_ELSEWHERE] = b"", False


def _source(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def is_wanted() -> bool:
    return bool(_packed)


def start(body: bytes, ends: Iterable[int]) -> NoReturn:
    """
    Become the image's interpreter, which runs the job in *body* and has *ends*: the job and reply pipes, and the door. If
    there is none the process ends, and says so.
    """
    program = next(filter(_can_run, (os.path.join(folder, name) for name in _NAMES
                                     for folder in os.get_exec_path() if folder.startswith("/"))), "")
    if program:
        try:
            fd = os.memfd_create("leeward", 0)
            with open(fd, "wb", closefd=False) as file:
                marshal.dump((_packed, _alone[0], body), file, _FORMAT)
            for end in ends:
                with contextlib.suppress(OSError):  # closed, or none
                    os.set_inheritable(end, True)
            os.execve(program, [program, "-c", BOOT, *map(str, (fd, *ends))], dict(os.environ))
        except OSError as error:
            why = f"{program}: {error.strerror}"
    else:
        why = "the image has no python3, which runs code and kernels; run() starts programs"
    os.write(2, f"leeward: {why}\n".encode("utf-8", "backslashreplace"))
    os._exit(_NO_COMMAND)


def _can_run(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


class States:
    """`snapshots.Native`'s calls, in the image's interpreter: *alone* is an object for ctypes, mapped for the first state."""

    def __init__(self, alone: bytes) -> None:
        self._alone = alone
        self._dump: Callable[[int, int, int, int], int] | None = None

    def known(self) -> bool:
        """Whether states can be written. ImportError, OSError with the reason if not."""
        if self._dump is None:
            import ctypes  # the image's, which may lack it

            fd = os.memfd_create("leeward", os.MFD_CLOEXEC)
            with open(fd, "wb", buffering=0) as file:
                file.write(self._alone)
                made = ctypes.PyDLL(f"/proc/self/fd/{fd}").lw_alone_dump
            made.restype, made.argtypes = ctypes.c_int64, [ctypes.c_int] * 4
            self._dump = made
        return True

    def dump(self, orders: int, answers: int, _scratch: int, _memory: int, gate: int, number: int) -> int:
        """As _native/state.py: returns in copies."""
        assert self._dump is not None
        done = self._dump(orders, answers, gate, number)
        if done < 0:
            raise OSError(-done, os.strerror(-done))
        return done
