"""
What of CPython's own tests passes outside and not inside, each with its reason.

A row says which tests, what the failure looks like inside, and why that is meant. All three
have to fit: another failure of the same test is a bug of ours all the same.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

#: What a test shows that has no result: it is one of ENDS, or a subtest failed, of which regrtest keeps no text.
SUBTEST = r"^$"


@dataclass(frozen=True)
class Row:
    """
    Attributes:
        tests: a pattern over module.Class.test, as fnmatch has it.
        sign: a regular expression that the failure inside, or the reason of the skip, matches.
    """

    tests: str
    sign: str
    why: str


#: Tests that wait for what they don't get, on both sides, by pattern: not run.
HANGS = {
    "test_socket.ThreadedVSOCK*": "waits for a virtual machine's socket, which the host has and nobody answers",
}
#: Tests that can end their whole module inside, by pattern: run outside alone, so that their row counts them.
ENDS = ("test_socket.*UDPLITE*",)
#: Modules that take more than two seconds of a processor, and in how many parts a run has one of them.
SLOW = {
    "test_asyncio.test_events": 2, "test_asyncio.test_ssl": 2, "test_asyncio.test_subprocess": 3,
    "test_asyncio.test_tasks": 2, "test_c_locale_coercion": 2, "test_cmd_line": 4, "test_cmd_line_script": 3,
    "test_compileall": 5, "test_importlib": 2, "test_io": 3, "test_lib2to3": 3, "test_multiprocessing_main_handling": 6,
    "test_os": 2, "test_pickle": 2, "test_pdb": 2, "test_regrtest": 9, "test_signal": 3, "test_socket": 3, "test_ssl": 2,
    "test_subprocess": 8, "test_tarfile": 5, "test_threading": 3, "test_unittest": 2, "test_weakref": 2, "test_zipfile": 4,
}

ROWS: tuple[Row, ...] = (
    Row("test_uuid.TestInternals*", r"requires (ip|ifconfig)", "these programs need sockets of netlink"),
    Row("*", r"_unlink\(filename\)(\n[\s~^]*)?\nOSError: \[Errno 30\] Read-only file system",
        "it unlinks what isn't there from the library's own folder, which is read-only: that is EROFS, not ENOENT"),
    Row("test_bdb.IssuesTestCase.test_next_until_return_in_generator", SUBTEST,
        "it unlinks what isn't there from the library's own folder, which is read-only: that is EROFS, not ENOENT"),
    Row("test_fcntl.TestFcntl.test_fcntl_64_bit", r"fcntl\.fcntl\(fd, cmd, flags\)(\n[\s~^]*)?\nPermissionError",
        "F_NOTIFY, which inotify replaced, is refused"),
    Row("test_posix.PosixTester.test_sched_setaffinity", r"\.sched_setaffinity\(0, mask\)(\n[\s~^]*)?\nPermissionError",
        "where no cgroup limits a job's processors its affinity does, and may not be changed"),
    Row("test_shutil.TestZeroCopySendfile.*", r"os\.sendfile\(\) not supported", "sendfile is refused with EINVAL"),
    Row("*", "^skipped: .*not venv-compatible", "the job's interpreter is of an environment"),
    Row("test_sysconfig.TestSysConfig.test_*", r"/venv/(lib/python|Include)|\.startswith\(incpath",
        "the job's interpreter is of an environment"),
    Row("test_cmd_line.CmdLineTest.test_non_interactive_output_buffering", "False True False",
        "a job's PYTHONUNBUFFERED is 1"),
    Row("*", r"MSG_OOB\)(\n[\s~^]*)?\nOSError: \[Errno 95\]", "MSG_OOB is refused, whatever the socket's family"),
    Row("test_socket.*UDPLITE*", SUBTEST,
        "sockets of UDP-Lite are refused, to the test's other thread too; while regrtest writes of a thread that ends by an"
        " error, sys.stderr isn't what unittest reads when it keeps an error of the main one, and that ends regrtest"),
    Row("test_socket.*VSOCK*", r"required|PermissionError: \[Errno 13\]", "sockets of virtual machines are refused"),
    Row("test_socket.*", r"no interface with this name|Name or service not known|%1'\n'ff02::1de:c0:face:8d%lo'",
        "an interface's number is asked by an ioctl that is refused"),
    Row("test_socket.SendfileUsingSendfileTest.*", r"AssertionError: 0 != \d+|_GiveupOnSendfile",
        "sendfile is refused with EINVAL"),
    Row("test_spwd.TestSpwdRoot.*", "root privileges required", "a job isn't root"),
    Row("test_os.*.test_splice*", r"os\.splice\(.*(\n[\s~^]*)?\nOSError: \[Errno 22\]", "splice is refused with EINVAL"),
    Row("test_os.*.test_closerange", r"couldn't allocate two consecutive fds|acquire a range of invalid file descriptors",
        "4 is leeward's own descriptor, so 3 has no free one behind it"),
    Row("test_os.TestInvalidFD.test_tcsetpgrp*", "13 != 9", "TIOCSPGRP is refused with EACCES, whatever the descriptor is"),
    Row("test_os.ChownFileTests.test_chown_without_permission", r"\[Errno 22\]",
        "chown to an id that its user namespace doesn't map is EINVAL; the test wants EPERM"),
    Row("test_os.MakedirTests.test_exist_ok_s_isgid_directory", "Cannot set S_ISGID", "set-id bits are refused"),
    Row("test_cmd_line.CmdLineTest.test_cpu_count*", r"Tuples differ: \(1, \d+\) != \(1, 1\)|PYTHON_CPU_COUNT",
        "a job's PYTHON_CPU_COUNT is 1"),
    Row("test_os.CPUCountTests.test_process_cpu_count_affinity", "1 != 0", "a job's PYTHON_CPU_COUNT is 1"),
    Row("test_asyncio.test_sendfile.*.test_sendfile_prevents_bare_write", "RuntimeError not raised",
        "sendfile is refused with EINVAL, so asyncio copies"),
    Row("test_asyncio.*.test_sock_sendfile_cancel*", r"SendfileNotAvailableError|InvalidStateError",
        "sendfile is refused with EINVAL, so asyncio copies"),
    Row("test_os.TestSendfile.*", r"OSError: \[Errno 22\]", "sendfile is refused with EINVAL"),
    Row("test_trace.*", r"FileNotFoundError.*/leeward/",
        "it reads all modules' files, and those of leeward's own aren't there"),
    Row("test_pty.PtyTest.test_openpty", "not functional", "a job has no terminals"),
    Row("*", r"openpty?\(.*\)(\n[\s~^]*)?\nFileNotFoundError|out of pty devices",
        "a job has no terminals: there is no /dev/ptmx"),
    Row("test_subprocess.POSIXProcessTestCase.test_user", SUBTEST,
        "setuid to an id that its user namespace doesn't map is EINVAL; the test knows success and EPERM"),
    Row("test_subprocess.POSIXProcessTestCase.test_group", SUBTEST,
        "setgid to an id that its user namespace doesn't map is EINVAL; the test knows success and EPERM"),
    Row("test_threading.ThreadJoinOnShutdown.test_4_daemon_threads", "can't start new thread",
        "it starts 33 threads; a job has 32 processes and threads"),
    Row("test_external_inspection.*", r"Insufficient permissions|get_stack_trace\(os\.getpid\(\)\)(\n.*)?\nPermissionError",
        "process_vm_readv is refused, by which it reads its own memory"),
    Row("test_pickle.*.test_unpickle_module_race", "Errno 30. Read-only file system",
        "it unlinks what isn't there from each folder of sys.path; in a read-only one that is EROFS, not ENOENT"),
    Row("test_doctest.*.test_empty_namespace_package", "Read-only file system",
        "it makes a module in the standard library's folder"),
    Row("test_tarfile.TestExtractionFilters.test_modes", r"rwsrwsrwt|os\.chmod\(.*(\n[\s~^]*)?\nPermissionError",
        "set-id bits are refused"),
    Row("test_venv.BasicTest.test_zippath_from_non_installed_posix", "No space left on device",
        "it copies the standard library, which is more than a job's files may have"),
    Row("test_zipfile.*PyZipFileTests.test_write_*", "requires write access to the installed location",
        "it compiles modules in the standard library's folder"),
)


def row_for(test: str, failure: str) -> Row | None:
    """The first row that this test and failure fit."""
    return next((row for row in ROWS if fnmatch.fnmatchcase(test, row.tests) and re.search(row.sign, failure)), None)
