"""
Real programs by name: the job of each in a sandbox, and the output that is expected.

Runs in:   the tests' process; pure data. tests/integration/test_real_programs.py runs the rows.

The program of a row works, or it fails with a message that its user understands; the latter are the `refused` rows. A
row names what it needs beyond the default profile: `loopback` and `terminal` of the configuration, packages of
`python_env`.
"""
# ruff: noqa: E501 (a program is on one line)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Program:
    """
    Attributes:
        code: the job.
        says: a regular expression, found in what it writes to stdout and stderr. AFFINITY in it is the number of
            processors that sched_getaffinity(2) tells, which a limit of processor time doesn't change; PARALLEL what
            node makes of both: its libuv reads cpu.max from 1.51 on, where groups are of version 2 alone.
        refused: the program ends with another status than 0, after it has printed that message.
        needs: features of this machine; kit/features.py.
        where: "" for the profile as it comes, "loopback", "terminal", "pinned", or "packages", which has the first two
            and a python_env.
        memory: bytes; 0 is the default.
        processes: processes at once; 0 is the default.
    """

    name: str
    code: str
    says: str
    refused: bool = False
    needs: tuple[str, ...] = ()
    where: str = ""
    memory: int = 0
    processes: int = 0

    @property
    def limits(self) -> dict[str, int]:
        return {name: number for name, number in (("memory", self.memory), ("processes", self.processes)) if number}


@dataclass(slots=True)
class _Table:
    """A table of rows that run in the same profile and need the same features."""

    where: str = ""
    rows: list[Program] = field(default_factory=list)

    def python(self, name: str, code: str, says: str, *needs: str, refused: bool = False, memory: int = 0,
               processes: int = 0) -> None:
        self.rows.append(Program(name, code, says, refused, needs, self.where, memory, processes))

    def shell(self, name: str, line: str, says: str, *programs: str, refused: bool = False, memory: int = 0,
              processes: int = 0) -> None:
        """A row that runs *line* by bash, which needs these *programs* below /usr."""
        code = f"import subprocess, sys\nsys.exit(subprocess.run(['bash', '-c', {line!r}]).returncode)"
        needs = tuple(f"usr-{program}" for program in ("bash", *programs))
        self.rows.append(Program(name, code, says, refused, needs, self.where, memory, processes))


def _c_like(file: str, text: str) -> str:
    return f"cat >{file} <<'END'\n{text}\nEND\n"


def _library() -> Iterator[Program]:
    table = _Table()
    add = table.python
    add("ssl", "import ssl; print(ssl.create_default_context().check_hostname)", "^True")
    add("zoneinfo", "import zoneinfo as z, datetime as d\n"
        "print(d.datetime(2024, 7, 1, tzinfo=z.ZoneInfo('America/New_York')).tzname())", "^EDT")
    add("TZ", "import os, time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset(); print(time.tzname[0])", "^JST")
    add("locale", "import locale; print(locale.setlocale(locale.LC_ALL, ''), locale.getpreferredencoding())",
        r"^C\.UTF-8 (utf|UTF)-8")
    add("a locale that the host lacks", "import locale; locale.setlocale(locale.LC_ALL, 'xx_XX.UTF-8')",
        "locale.Error: unsupported locale setting", refused=True)
    add("sqlite WAL", "import sqlite3; c = sqlite3.connect('a.db')\n"
        "print(*c.execute('pragma journal_mode=wal').fetchone())\nc.execute('create table t(x)')\n"
        "print(sqlite3.connect('a.db').execute('select count(*) from t').fetchone())", r"^wal\n\(0,\)")
    add("a tool", "import subprocess; print(subprocess.check_output(['ls', '/workspace']))", "^b''")
    add("itself", "import subprocess, sys; subprocess.run([sys.executable, '-m', 'timeit', '-n1', '-r1', 'print(7)'])",
        "^7\n1 loop, best of 1: ")
    add("shared memory", "from multiprocessing.shared_memory import SharedMemory as S; s = S(create=True, size=9)\n"
        "print(len(s.buf) >= 9); s.close(); s.unlink()", "^True")
    add("shelve", "import shelve\nwith shelve.open('s') as s: s['a'] = 1\nprint(dict(shelve.open('s')))", "^{'a': 1}")
    add("a large temporary file", "import tempfile; f = tempfile.TemporaryFile(); print(f.write(bytes(50_000_000)))",
        "^50000000")
    add("the user", "import getpass, os; print(getpass.getuser(), os.path.expanduser('~'), os.getlogin)",
        "^sandbox /workspace")
    add("pwd and grp", "import grp, os, pwd; print(pwd.getpwuid(os.getuid()).pw_shell, grp.getgrgid(os.getgid()).gr_name)",
        "^/bin/sh sandbox")
    add("processors", "import os; asked = getattr(os, 'process_cpu_count', os.cpu_count)  # since 3.13\n"
        "print(os.cpu_count(), os.sysconf('SC_NPROCESSORS_CONF'), asked(), os.environ['PYTHON_CPU_COUNT'])", "^1 1 1 1")
    add("the size of memory", "print(open('/proc/meminfo').readline().split()[1])", "^262144\n")
    add("the limits as a cgroup's", "for name in ('cpu', 'memory', 'pids'):\n"
        "    print(open(f'/sys/fs/cgroup/{name}.max').read().strip())", "^100000 100000\n268435456\n32\n")
    add("uptime", "import time; up = float(open('/proc/uptime').read().split()[0])\n"
        "print(abs(time.clock_gettime(time.CLOCK_BOOTTIME) - up) < 1)", "^True")
    add("os.walk from the root", "import os\n"
        "print(sorted(os.listdir('/home')), [name for name in next(os.walk('/'))[1] if 'etc' == name])",
        r"^\['sandbox'\] \['etc'\]")
    add("platform", "import platform; print(platform.node(), platform.machine())", "^leeward (x86_64|aarch64)")
    add("names of protocols", "import socket; print(socket.getprotobyname('udp'), socket.gethostname())", "^17 leeward")
    add("a name of its own", "import socket; print(socket.getaddrinfo('localhost', 80)[0][4][0])", r"^(127\.0\.0\.1|::1)")
    add("ctypes", "import ctypes, ctypes.util; call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)\n"
        "print(call(2), ctypes.CDLL(ctypes.util.find_library('m')).abs(-3))", "^3 3")
    add("tracemalloc", "import tracemalloc; tracemalloc.start(); kept = [bytes(1000) for _ in range(100)]\n"
        "print(tracemalloc.get_traced_memory()[0] > 90_000)", "^True")
    add("faulthandler", "import faulthandler, os, signal; faulthandler.register(signal.SIGUSR1)\n"
        "os.kill(os.getpid(), signal.SIGUSR1); print('went on')", "(?s)^went on.*most recent call first")
    add("signals", "import signal; signal.signal(signal.SIGALRM, lambda *_: print('alarm'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02); signal.pause(); signal.setitimer(signal.ITIMER_REAL, 0)",
        "^alarm")
    add("resource", "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (100, 100))\n"
        "print(r.getrusage(r.RUSAGE_SELF).ru_maxrss > 1000)", "^True")
    add("threads", "import threading as t; all_ = [t.Thread(target=print, args=('t',)) for _ in range(20)]\n"
        "[each.start() for each in all_]; [each.join() for each in all_]", "^(t\n){20}$")
    add("a subprocess of asyncio", "import asyncio\nasync def main():\n"
        "    made = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n    print(await made.communicate())\n"
        "asyncio.run(main())", r"^\(b'hi\\n', None\)")
    add("compression", "import bz2, gzip, lzma, zlib\n"
        "print(all(m.decompress(m.compress(b'a')) == b'a' for m in (bz2, gzip, lzma, zlib)))", "^True")
    add("readline", "import readline; readline.add_history('a'); print(readline.get_current_history_length())", "^1")
    add("curses", "import curses; curses.setupterm('xterm'); print(curses.tigetnum('colors'))", "^8")
    add("pdb", "import io, pdb, sys\npdb.Pdb(stdin=io.StringIO('p 6*7\\nc\\n'), stdout=sys.stdout).set_trace()\nx = 1",
        "42")
    add("unittest", "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertTrue(1)\n"
        "unittest.main(argv=['job'])", "Ran 1 test.*\n\nOK")
    add("venv", "import subprocess, venv; venv.create('v', with_pip=False)\n"
        "print(subprocess.check_output(['v/bin/python', '-c', 'import sys; print(sys.prefix)'], text=True))",
        "^/workspace/v")
    add("syslog", "import syslog; syslog.syslog('nobody listens'); print('ok')", "^ok")
    add("uuid", "import uuid; print(uuid.uuid1().version, uuid.uuid4().version)", "^1 4")
    add("nice", "import os; print(os.nice(5), len(os.getloadavg()))", "^5 3")
    add("a counter that forks share", "import mmap, os; m = mmap.mmap(-1, 4096)\nif not os.fork(): m[0] = 7; os._exit(0)\n"
        "os.wait(); print(m[0])", "^7")
    add("a memory file", "import mmap, os; fd = os.memfd_create('m'); os.truncate(fd, 9); m = mmap.mmap(fd, 9); m[0] = 7\n"
        "print(os.pread(fd, 1, 0)[0])", "^7")
    add("huge pages", "import mmap; mmap.mmap(-1, 1 << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)",
        "Cannot allocate memory", refused=True)
    add("copies of files", "import shutil; open('a', 'wb').write(bytes(300_000)); shutil.copyfile('a', 'b')\n"
        "print(len(open('b', 'rb').read()))", "^300000")
    add("socket.sendfile", "import socket, threading; a, b = socket.socketpair(); open('f', 'wb').write(bytes(100_000))\n"
        "t = threading.Thread(target=lambda: print(len(b.recv(100_000, socket.MSG_WAITALL)))); t.start()\n"
        "a.sendfile(open('f', 'rb')); t.join()", "^100000")
    add("sendfile of asyncio", "import asyncio; open('f', 'wb').write(bytes(100_000))\nasync def main():\n"
        "    async def serve(r, w): await asyncio.get_running_loop().sendfile(w.transport, open('f', 'rb')); w.close()\n"
        "    s = await asyncio.start_unix_server(serve, 's'); r, w = await asyncio.open_unix_connection('s')\n"
        "    print(len(await r.read()))\nasyncio.run(main())", "^100000")
    add("sendfile itself", "import os; open('f', 'wb').write(b'x'); os.sendfile(1, os.open('f', 0), 0, 1)",
        r"OSError: \[Errno 22\] Invalid argument", refused=True)
    add("a fork and its end", "import os; pid = os.fork()\nif not pid: os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))", "^7")
    add("a pool of processes", "from concurrent.futures import ProcessPoolExecutor as P\n"
        "with P(3) as pool: print(list(pool.map(abs, [-1, -2])))", r"^\[1, 2\]")
    add("multiprocessing's parts", "import multiprocessing as m; a = m.Array('i', 3); a[1] = 5; q = m.Queue(); q.put(6)\n"
        "with m.Manager() as manager: d = manager.dict(); d['k'] = 7; print(a[:], q.get(), dict(d))",
        r"^\[0, 5, 0\] 6 {'k': 7}")
    add("standard input that is empty", "input()", "EOFError: EOF when reading a line", refused=True)
    add("urllib without a network", "import urllib.request; urllib.request.urlopen('http://example.org')",
        "Temporary failure in name resolution", refused=True)
    add("a socket without loopback", "import socket; socket.create_server(('127.0.0.1', 0))", "Permission denied|[Nn]etwork",
        refused=True)
    add("a terminal without one", "import pty; pty.spawn(['true'])", "out of pty devices", refused=True)
    return iter(table.rows)


def _tools() -> Iterator[Program]:
    table = _Table()
    add = table.shell
    add("bash", "declare -A a=([k]=v); read x <<<here; echo ${a[k]} $x; cat <(echo sub); sleep 0.01 & wait; echo $?",
        "^v here\nsub\n0")
    add("text tools", r"printf 'b 2\na 1\n' | sort | sed s/a/c/ | awk '{print $1}' | grep c; seq 4 | xargs -P4 -n1 | wc -l",
        "^c\n4", "awk", "xargs")
    add("tar and its compressors", "mkdir d; echo 1 >d/f; for z in z j J; do tar c${z}f a d && tar tf a | tail -1; done",
        "^d/f\nd/f\nd/f", "tar", "bzip2", "xz")
    add("diff and patch", "echo a >a; echo b >b; diff -u a b >p; patch -s a p; cat a", "^b", "diff", "patch")
    add("find", "find / -maxdepth 1 -name etc 2>&1", "^/etc\n$", "find")
    add("file", "file -b /usr/bin/env", "^ELF 64-bit", "file")
    add("ldd", "ldd /usr/bin/env | grep -o libc.so.6 | head -1", r"^libc\.so\.6", "ldd")
    add("id and getent", "id -un; getent passwd sandbox", "^sandbox\nsandbox:x:", "id", "getent")
    add("ps and uptime", "ps -o comm= -p $$; uptime | grep -c ' up '; free -m | awk '/Mem/ {print $2}'",
        "^bash\n1\n256", "ps", "uptime", "free", "awk")
    add("vmstat", "vmstat | tail -1 | wc -w | grep -c 1", "^1", "vmstat")
    add("getconf and lscpu", "getconf _NPROCESSORS_ONLN; lscpu | grep -c Architecture", "^1\n1", "lscpu")
    add("date", "TZ=Europe/Berlin date -d 2024-07-01 +%Z", "^CEST")
    add("timeout", "timeout 0.05 sleep 5; echo $?", "^124", "timeout")
    add("vim", "echo a >f; vim -es -u NONE -c s/a/b/ -c wq f; cat f", "^b", "vim")
    add("less", "echo hi | less -F", "^hi", "less")
    add("busybox", "seq 30000 >a; busybox cp a b; cp b c; busybox cat c | busybox wc -l", "^30000", "busybox")
    add("jq", "echo '{\"a\":[1,2]}' | jq -c '.a|add'", "^3", "jq")
    add("sqlite3", "sqlite3 a.db 'create table t(x); insert into t values(7); select * from t'", "^7", "sqlite3")
    add("openssl", "openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -days 1 -subj /CN=a 2>/dev/null;"
        " openssl x509 -in c -noout -subject", "^subject=CN ?= ?a", "openssl")
    add("ssh-keygen", "ssh-keygen -q -t ed25519 -N '' -f k; ls k*", "^k\nk.pub", "ssh-keygen")
    add("git", "git init -q r; cd r; git config user.email a@b; git config user.name n; echo 1 >f; git add f;"
        " git commit -qm one; git clone -q . ../c; cat ../c/f; git log --oneline | wc -l", "^1\n1", "git")
    add("git from the network", "git clone https://example.org/x.git", "Could not resolve host: example.org", "git",
        refused=True)
    add("curl", "curl -sS https://example.org", "Could not resolve host: example.org", "curl", refused=True)
    add("wget", "wget -nv https://example.org", "unable to resolve host address", "wget", refused=True)
    add("ssh", "ssh -o BatchMode=yes a@example.org", "Could not resolve hostname example.org", "ssh", refused=True)
    add("ip", "ip addr", "Cannot open netlink socket: Permission denied", "ip", refused=True)
    add("mount", "mount -t tmpfs none /tmp", "mount: ", "mount", refused=True)
    add("unshare", "unshare -r true", "unshare failed: Permission denied", "unshare", refused=True)
    add("strace", "strace true", "PTRACE_TRACEME.*Permission denied", "strace", refused=True)
    add("gdb", "gdb -batch -ex run true 2>&1 | grep -i ptrace", "ptrace: Permission denied", "gdb")
    add("valgrind", "valgrind -q true; echo $?", "^0", "valgrind", memory=512 * MIB)
    add("perf", "perf stat true", "limited", "perf", refused=True)
    return iter(table.rows)


_NODES = "node -e 'const os = require(\"os\"); console.log(os.cpus().length, os.availableParallelism())'"
_JAVAS = _c_like("A.java", "public class A { public static void main(String[] a) {\n"
                           "System.out.println(Runtime.getRuntime().availableProcessors()); } }") + (
    "javac -J-Xmx200m -J-XX:+UseSerialGC A.java; run='java -Xmx100m -XX:+UseSerialGC';"
    " $run A; $run -XX:ActiveProcessorCount=1 A")
_GOS = _c_like("a.go", 'package main\n\nimport "runtime"\n\n'
                       "func main() { println(runtime.GOMAXPROCS(0), runtime.NumCPU()) }") + "GOFLAGS=-p=1 go run a.go"


def _pinned() -> Iterator[Program]:
    """Rows of programs that ask the kernel for the number of processors, where a job has one."""
    table = _Table("pinned")
    table.python("processors where jobs are pinned", "import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))", "^1 1")
    table.python("another processor where jobs are pinned", "import os; os.sched_setaffinity(0, {0})", "Permission denied",
                 refused=True)
    table.shell("nproc where jobs are pinned", "nproc; nproc --all; getconf _NPROCESSORS_ONLN", "^1\n1\n1")
    table.shell("node where jobs are pinned", _NODES, "^1 1", "node", memory=512 * MIB)
    table.shell("java where jobs are pinned", _JAVAS, "^1\n1", "java", "javac", memory=1024 * MIB, processes=64)
    table.shell("go where jobs are pinned", _GOS, "^1 1", "go", memory=1024 * MIB, processes=64)
    return iter(table.rows)


def _languages() -> Iterator[Program]:
    table = _Table()
    add = table.shell
    add("gcc", _c_like("a.c", 'int puts(const char *);\nint main(void) { puts("c"); }') + "gcc a.c && ./a.out", "^c", "gcc")
    add("g++", _c_like("a.cc", "#include <vector>\n#include <cstdio>\n"
                       'int main() { std::vector<int> v(3); printf("%d", int(v.size())); }')
        + "g++ a.cc && ./a.out", "^3", "g++")
    add("clang", _c_like("a.c", 'int puts(const char *);\nint main(void) { puts("c"); }') + "clang a.c && ./a.out", "^c",
        "clang", "gcc", memory=512 * MIB)
    add("make", "printf 'all:\\n\\t@echo made\\n' >Makefile; make -j2", "^made", "make")
    add("cmake", "printf 'cmake_minimum_required(VERSION 3.10)\\nproject(a NONE)\\nfile(WRITE out made)' >CMakeLists.txt;"
        " cmake . >/dev/null; cat out", "^made", "cmake")
    add("java", _c_like("A.java", "public class A { public static void main(String[] a) throws Exception {\n"
                        "System.out.println(java.net.InetAddress.getLocalHost().getHostName()); } }")
        + "javac -J-Xmx200m -J-XX:+UseSerialGC A.java && java -Xmx100m -XX:+UseSerialGC A", "^leeward", "java", "javac",
        memory=1024 * MIB, processes=64)
    add("kotlin", _c_like("a.kt", 'fun main(args: Array<String>) { println("hi " + (1..10).sum()) }')
        + "export JAVA_OPTS=-Xmx512m; kotlinc a.kt -include-runtime -d a.jar && kotlin -classpath a.jar AKt", "^hi 55",
        "kotlinc", "kotlin", memory=1024 * MIB, processes=128)
    add("go", _c_like("a.go", 'package main\n\nfunc main() { println("go") }') + "gofmt -l a.go; GOFLAGS=-p=1 go run a.go",
        "go", "go", "gofmt", memory=1024 * MIB, processes=64)
    add("rust", _c_like("a.rs", 'fn main() { println!("rust"); }') + "rustc a.rs && ./a", "^rust", "rustc",
        memory=1024 * MIB)
    add("cargo", "cargo new -q --vcs none a; cd a; cargo run -q --offline", "^Hello, world!", "cargo", "rustc",
        memory=1024 * MIB)
    add("perl", "perl -MPOSIX -e 'print floor(2.5)'", "^2", "perl")
    add("tcl", "echo 'puts [expr 6*7]' | tclsh", "^42", "tclsh")
    add("node", "node -e 'const os = require(\"os\"); console.log(os.cpus().length, os.totalmem(), os.hostname())'",
        "^1 536870912 leeward|^1 268435456 leeward", "node", memory=512 * MIB)
    add("node's workers", "node -e 'const {Worker} = require(\"worker_threads\");"
        " new Worker(\"require(\\\"worker_threads\\\").parentPort.postMessage(7)\", {eval: true}).on(\"message\","
        " console.log)'", "^7", "node", memory=1024 * MIB)
    add("node's server without loopback",
        "node -e 'require(\"http\").createServer().listen(8080).on(\"error\", e => { console.log(e.code);"
        " process.exit(1) })'", "^EACCES", "node", refused=True, memory=512 * MIB)
    add("processors of node", _NODES, "^1 PARALLEL", "node", memory=512 * MIB)
    add("processors of java", _JAVAS, "^AFFINITY\n1", "java", "javac", memory=1024 * MIB, processes=64)
    add("processors of go", _GOS, "^1 AFFINITY", "go", memory=1024 * MIB, processes=64)
    add("npm init", "npm init -y >/dev/null; grep -c version package.json", "^1", "npm", memory=1024 * MIB)
    add("npm install", "npm install left-pad --fetch-retries=0 --no-audit 2>&1", "network|ENOTFOUND|EAI_AGAIN", "npm",
        refused=True, memory=1024 * MIB)
    return iter(table.rows)


#: A job has no packages of its own: pip's wheel of the standard library runs from where it lies.
_PIP = """
import ensurepip, glob, os, subprocess, sys
wheel = glob.glob(os.path.dirname(ensurepip.__file__) + "/_bundled/pip*")
run = [sys.executable, *([wheel[0] + "/pip"] if wheel else ["-m", "pip"]), "install", "-q", "--no-index", "--target", "t"]
"""


def _pip() -> Iterator[Program]:
    table = _Table()
    table.python("pip into a target", _PIP + """
import zipfile
with zipfile.ZipFile("mine-1-py3-none-any.whl", "w") as made:
    made.writestr("mine.py", "x = 7\\n")
    made.writestr("mine-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\n")
    made.writestr("mine-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: a\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    made.writestr("mine-1.dist-info/RECORD", "")
subprocess.run([*run, "./mine-1-py3-none-any.whl"], check=True)
sys.path.insert(0, "t")
import mine; print(mine.x)
""", "^7", "pip-in-reach")
    table.python("pip from the network", _PIP + """
run.remove("--no-index")
done = subprocess.run([*run, "six", "--retries", "0"], capture_output=True, text=True)
print(done.stderr); sys.exit(done.returncode)
""", "No matching distribution|Name or service not known|[Nn]etwork", "pip-in-reach", refused=True)
    return iter(table.rows)


_ASKED = """
import time, urllib.request
open("a", "wb").write(bytes(300_000))
for _ in range(200):
    try:
        got = urllib.request.urlopen("http://127.0.0.1:8080/a", timeout=10)
        print(len(got.read()), got.status)
        break
    except Exception as error:
        if "refused" not in str(error):
            print(error)
            break
        time.sleep(0.02)
server.terminate(); server.wait()
"""

#: A master process and a worker, which says on stderr what fails.
_NGINX = """
import subprocess
open("n.conf", "w").write("daemon off; pid n.pid; error_log stderr; events { } http { access_log off; sendfile SENDFILE;"
    " client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;"
    " server { listen 127.0.0.1:8080; root /workspace; } }")
server = subprocess.Popen(["/usr/sbin/nginx", "-p", "/workspace", "-c", "n.conf", "-e", "stderr"])
""" + _ASKED

_BUSYBOX = """
import subprocess
server = subprocess.Popen(["busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/workspace"])
""" + _ASKED


def _servers() -> Iterator[Program]:
    table = _Table("loopback")
    add = table.python
    add("http.server", "import http.server as h, threading, urllib.request as u\n"
        "s = h.ThreadingHTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
        "print(u.urlopen(f'http://localhost:{s.server_port}/').status); s.shutdown()", "200")
    add("a server of asyncio", "import asyncio\nasync def hello(r, w): w.write(b'hi'); w.close()\nasync def main():\n"
        "    s = await asyncio.start_server(hello, '::1', 0)\n"
        "    r, w = await asyncio.open_connection(*s.sockets[0].getsockname()[:2]); print(await r.read())\n"
        "asyncio.run(main())", "^b'hi'")
    add("UDP", "import socket as s; a = s.socket(s.AF_INET, s.SOCK_DGRAM); a.bind(('127.0.0.1', 0))\n"
        "b = s.socket(s.AF_INET, s.SOCK_DGRAM); b.sendto(b'x', a.getsockname()); print(a.recv(1))", "^b'x'")
    add("xmlrpc", "import threading, xmlrpc.client as c, xmlrpc.server as s\n"
        "made = s.SimpleXMLRPCServer(('127.0.0.1', 0), logRequests=False); made.register_function(pow)\n"
        "threading.Thread(target=made.handle_request).start()\n"
        "print(c.ServerProxy('http://127.0.0.1:%d' % made.server_address[1]).pow(2, 10))", "^1024")
    add("a manager with an address", "from multiprocessing.managers import BaseManager as B\nclass M(B): pass\n"
        "M.register('five', callable=lambda: [5])\nwith M(address=('127.0.0.1', 0), authkey=b'k') as m: print(m.five()._getvalue())",
        r"^\[5\]")
    add("smtplib without a server", "import smtplib; smtplib.SMTP('localhost', 2525)", "Connection refused", refused=True)
    add("a host outside", "import socket; socket.create_connection(('192.0.2.1', 80), 5)", "Network is unreachable",
        refused=True)
    add("a privileged port", "import socket; socket.create_server(('127.0.0.1', 80))", "Permission denied", refused=True)
    table.shell("node's server", "node -e 'const h = require(\"http\"); const s = h.createServer((q, r) => r.end(\"served\"))"
                ".listen(0, () => h.get({port: s.address().port}, r => r.on(\"data\", d => { console.log(String(d),"
                " Object.keys(require(\"os\").networkInterfaces())); process.exit() })))'", r"^served \[ 'lo' \]", "node",
                memory=1024 * MIB)
    table.python("nginx", _NGINX.replace("SENDFILE", "off"), "^300000 200", "usr-nginx")
    table.python("nginx with sendfile", _NGINX.replace("SENDFILE", "on"), r"sendfile\(\) failed \(22: Invalid argument\)",
                 "usr-nginx")
    table.python("busybox httpd", _BUSYBOX, "^300000 200", "usr-busybox")
    table.shell("ss", "ss -tln | head -1", "^State", "ss")
    add("names of interfaces", "import socket; print(socket.if_nameindex())", r"^\[\(1, 'lo'\)\]")
    return iter(table.rows)


def _terminals() -> Iterator[Program]:
    table = _Table("terminal")
    table.python("pty.spawn", "import pty; pty.spawn(['sh', '-c', 'tty; stty size; echo to >/dev/tty'])",
                 "/dev/pts/0\r\n0 0\r\nto")
    table.python("os.openpty", "import os, tty; m, s = os.openpty(); tty.setraw(s); os.write(m, b'x')\n"
                 "print(os.read(s, 1), os.isatty(s), os.ttyname(s))", "^b'x' True /dev/pts/0")
    table.python("a terminal's size", "import fcntl, os, struct, termios; m, s = os.openpty()\n"
                 "fcntl.ioctl(m, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0)); print(os.get_terminal_size(s))",
                 "columns=80, lines=24")
    table.python("job control", "import pty\npty.spawn(['bash', '-ic', 'set -m; sleep 5 & kill -STOP %1; sleep 0.05; jobs; kill -9 %1'])",
                 r"Stopped\s+sleep 5", "usr-bash")
    table.shell("script", "script -qc tty /dev/null </dev/null", "^/dev/pts/0", "script")
    # The session stays: with the last one the server goes, and with it the word that the program is done.
    table.shell("tmux", "export TERM=screen; tmux -L t new-session -d 'tty >/tmp/o; tmux -L t wait-for -S done; sleep 60';"
                " tmux -L t wait-for done; cat /tmp/o; tmux -L t kill-server", "^/dev/pts/", "tmux")
    table.shell("vim on a terminal", "echo a >f; TERM=xterm script -qc 'vim -u NONE -c s/a/b/ -c wq f' /dev/null </dev/null >/dev/null;"
                " cat f", "^b", "vim", "script")
    return iter(table.rows)


_JUPYTER = """
from jupyter_client import KernelManager
manager = KernelManager(); manager.start_kernel(); client = manager.client()
client.start_channels(); client.wait_for_ready(timeout=60)
said = []
client.execute_interactive("print(6 * 7)", output_hook=lambda each: said.append(each["content"].get("text")), timeout=60)
client.stop_channels(); manager.shutdown_kernel(now=True)
print([each for each in said if each])
"""


def _packages() -> Iterator[Program]:
    table = _Table("packages")

    def add(name: str, code: str, says: str, **more: int) -> None:
        table.python(name, code, says, "real-packages", refused=bool(more.pop("refused", 0)), **more)

    add("numpy", "import numpy as n; a = n.random.default_rng(7).random((200, 200))\n"
        "print(n.allclose(a @ n.linalg.inv(a), n.eye(200)))", "^True")
    add("numpy's mapped files", "import numpy as n; m = n.memmap('m', dtype='i4', mode='w+', shape=9); m[3] = 5; m.flush()\n"
        "print(n.memmap('m', dtype='i4', mode='r')[3])", "^5")
    add("pandas", "import io, pandas as p; print(p.read_csv(io.StringIO('a,b\\n1,2\\n3,4')).b.sum())", "^6")
    add("pandas in time zones", "import pandas as p; print(p.Timestamp('2024-07-01', tz='UTC').tz_convert('Asia/Tokyo'))",
        r"^2024-07-01 09:00:00\+09:00")
    add("matplotlib", "import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as p; p.plot([1, 2])\n"
        "p.savefig('a.png'); print(open('a.png', 'rb').read(4))", "PNG")
    add("pillow", "from PIL import Image; Image.new('RGB', (9, 9)).save('a.png'); print(Image.open('a.png').size)",
        r"^\(9, 9\)")
    add("psutil", "import psutil as p; m = p.virtual_memory()\n"
        "print(p.cpu_count(), m.total, len(p.pids()), p.Process().name(), p.boot_time() > 0, p.cpu_percent(0.01))\n"
        "print(list(p.net_if_addrs()), abs(p.Process().create_time() - p.time.time()) < 86400)",
        r"^1 268435456 2 \S+ True 0.0\n\['lo'\] True")
    add("psutil's machine", "import psutil as p, warnings; warnings.simplefilter('error')\n"
        "print(p.swap_memory().total, p.sensors_battery(), {'/usr'} <= {each.mountpoint for each in p.disk_partitions(True)},\n"
        "      type(p.disk_partitions()).__name__, p.cpu_stats().interrupts)", "^0 None True list 0")
    add("psutil's connections", "import psutil as p, socket; s = socket.create_server(('127.0.0.1', 0))\n"
        "print([each.laddr.port == s.getsockname()[1] for each in p.net_connections()], list(p.net_io_counters(True)))",
        r"^\[True\] \['lo'\]")
    add("pexpect", "import pexpect; c = pexpect.spawn('sh', encoding='utf8'); c.sendline('echo $((6*7))'); c.expect('42')\n"
        "c.sendline('exit'); c.expect(pexpect.EOF); print('ok')", "^ok")
    add("Jupyter's kernel", _JUPYTER, r"^\['42\\n'\]", memory=512 * MIB, processes=64)
    add("flask and requests", "import flask, requests, threading\nfrom werkzeug.serving import make_server\n"
        "app = flask.Flask('a'); app.route('/')(lambda: 'served'); s = make_server('127.0.0.1', 0, app)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
        "print(requests.get(f'http://127.0.0.1:{s.port}/').text); s.shutdown()", "^served")
    add("requests without a network", "import requests; requests.get('https://example.org', timeout=5)",
        "Temporary failure in name resolution", refused=1)
    add("lxml", "from lxml import etree; print(etree.fromstring('<a><b/></a>').xpath('count(//b)'))", r"^1\.0")
    add("pyyaml", "import yaml; print(yaml.safe_load('a: [1, 2]'))", r"^{'a': \[1, 2\]}")
    add("pydantic", "import pydantic\nclass M(pydantic.BaseModel): x: int\nprint(M(x='5').x)", "^5")
    add("rich", "import rich.console as c; c.Console(force_terminal=True).print('[red]x')", r"\x1b\[31mx")
    add("pytest", "open('test_a.py', 'w').write('def test_a(tmp_path): assert tmp_path.exists()')\nimport pytest\n"
        "raise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider']))", "1 passed")
    return iter(table.rows)


PROGRAMS = (*_library(), *_tools(), *_languages(), *_pinned(), *_pip(), *_servers(), *_terminals(), *_packages())
