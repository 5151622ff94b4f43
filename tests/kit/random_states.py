"""
Programs whose states are compared: each makes some objects of some modules, and shows them and what they do next.

A program is chosen by its number. Where the state of one was taken, it and each copy must show the same: the objects, what
iterators and generators give next, random numbers, the position of a file. Left out is what copies don't have, by
docs/snapshots.md: the time, process numbers, and objects on sockets, such as an event loop that was there before.
"""

from __future__ import annotations

import random
from typing import Any

import leeward
from kit.live_daemon import LiveDaemon

#: By module: an expression that makes an object, with a number `n`, and one that shows the object `v`, and moves it on.
OF_LIBRARY = {
    "abc": ("abc.ABCMeta(f'C{n}', (), {'f': lambda self: n})()", "v.f()"),
    "argparse": ("argparse.ArgumentParser(prog=str(n))", "v.format_usage()"),
    "array": ("array.array('d', range(n % 999))", "(v.append(1.5), v.tobytes())"),
    "ast": ("ast.parse(f'x = [y + {n} for y in z]')", "ast.dump(v)"),
    "asyncio": ("asyncio.Queue()", "(v.put_nowait(n), v.qsize(), asyncio.run(asyncio.sleep(0, n)))"),
    "base64": ("base64.b64encode(bytes(range(n % 256)))", "base64.b64decode(v)"),
    "bisect": ("sorted(range(0, n % 5000, 7))", "(bisect.insort(v, 3), v[:9])"),
    "bz2": ("bz2.BZ2Compressor()", "v.compress(random.randbytes(n))[-9:]"),
    "calendar": ("calendar.TextCalendar(n % 7)", "v.formatmonth(2000 + n % 99, 1 + n % 12)"),
    "collections": ("collections.deque(range(n % 500), maxlen=99)", "(v.rotate(3), v.append(n), list(v))"),
    "configparser": ("configparser.ConfigParser({'a': str(n)})", "dict(v.defaults())"),
    "contextlib": ("contextlib.ExitStack()", "v.enter_context(contextlib.nullcontext(n))"),
    "contextvars": ("contextvars.ContextVar('c', default=n)", "(v.get(), v.set(n + 1) is None, v.get())"),
    "copy": ("copy.deepcopy([[n]] * 3)", "(v[0].append(1), v)"),
    "csv": ("csv.reader([f'{n},{each}' for each in range(99)])", "next(v)"),
    "ctypes": ("(ctypes.c_int * 9)(*range(n % 9))", "(v.__setitem__(0, n % 99), list(v))"),
    "dataclasses": ("dataclasses.make_dataclass('D', ['a', 'b'])(n, [n])", "dataclasses.asdict(v)"),
    "datetime": ("datetime.datetime(2000, 1, 1) + datetime.timedelta(seconds=n)", "v.isoformat()"),
    "decimal": ("decimal.Decimal(n) / 7", "(v := v * 3, str(v))"),
    "difflib": ("difflib.SequenceMatcher(None, str(n), str(n * 3))", "v.ratio()"),
    "email": ("email.message_from_string(f'Subject: {n}\\n\\nbody')", "v.as_string()"),
    "enum": ("enum.Enum('E', [f'A{each}' for each in range(1 + n % 9)])", "list(v.__members__)"),
    "fractions": ("fractions.Fraction(n, 97)", "(v * v, v.limit_denominator(5))"),
    "functools": ("functools.lru_cache(9)(lambda x: x + n)", "(v(n % 5), v(3), v.cache_info())"),
    "gc": ("[n]", "(v.append(v), v.clear(), gc.collect() >= 0)"),
    "glob": ("glob.iglob('/usr/lib/python3*')", "sorted(v) is not None"),
    "gzip": ("gzip.compress(str(n).encode() * 99, mtime=0)", "gzip.decompress(v)[-9:]"),
    "hashlib": ("hashlib.sha256(str(n).encode())", "(v.update(b'x'), v.hexdigest())"),
    "heapq": ("sorted((n * each) % 101 for each in range(99))", "(heapq.heappush(v, n % 7), heapq.heappop(v), v[:5])"),
    "hmac": ("hmac.new(b'k', str(n).encode(), 'sha1')", "(v.update(b'x'), v.hexdigest())"),
    "html": ("html.escape(f'<{n}>')", "html.unescape(v)"),
    "inspect": ("inspect.signature(lambda a, b=n: 0)", "str(v)"),
    "io": ("io.BytesIO(bytes(n % 9999))", "(v.read(n % 7), v.tell())"),
    "ipaddress": ("ipaddress.ip_network('10.0.0.0/24').hosts()", "next(v)"),
    "itertools": ("itertools.accumulate(itertools.count(n))", "[next(v) for _ in range(3)]"),
    "json": ("json.JSONDecoder()", "v.decode(json.dumps({'a': [n, None]}))"),
    "linecache": ("linecache.getlines('/etc/passwd')[:n % 3]", "v"),
    "locale": ("locale.localeconv()", "sorted(v)[:3]"),
    "logging": ("logging.getLogger(f'of{n}')", "(v.setLevel(n % 50), v.level, v.name)"),
    "lzma": ("lzma.LZMACompressor()", "v.compress(random.randbytes(n))[-9:]"),
    "math": ("[math.sin(each * n) for each in range(99)]", "math.fsum(v)"),
    "operator": ("operator.itemgetter(n % 5)", "v(range(9))"),
    "pathlib": ("pathlib.Path(f'/a/{n}')", "(v.parent, v.suffix)"),
    "pickle": ("pickle.dumps({'a': {n, 1}})", "sorted(pickle.loads(v)['a'])"),
    "queue": ("queue.Queue()", "(v.put(n), v.get(), v.qsize())"),
    "random": ("random.Random(n)", "[v.random() for _ in range(3)] + [random.random()]"),
    "re": ("re.finditer(str(n % 10), str(n ** 9))", "[each.span() for each in v]"),
    "secrets": ("secrets.compare_digest(str(n), str(n))", "v"),
    "shlex": ("shlex.shlex(f'a b{n} \"c d\"')", "v.get_token()"),
    "signal": ("signal.signal(signal.SIGUSR1, lambda *_: None)", "callable(signal.getsignal(signal.SIGUSR1))"),
    "sqlite3": ("sqlite3.connect(':memory:')",
                ("(v.execute('create table if not exists t (a)'), v.execute('insert into t values (?)', (n,)),"
                 " v.execute('select count(*), sum(a) from t').fetchall())[2]")),
    "ssl": ("ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)", "(v.check_hostname, len(v.get_ciphers()))"),
    "statistics": ("statistics.NormalDist(n % 99, 3)", "(v.pdf(3), statistics.median(range(n % 9 + 1)))"),
    "string": ("string.Template('$a $b')", "v.safe_substitute(a=n)"),
    "struct": ("struct.iter_unpack('<I', bytes(range(n % 50 * 4)))", "next(v, None)"),
    "tempfile": ("open('/workspace/file', 'w+')",
                 "(v.write('x\\n'), v.flush(), v.tell())"),
    "textwrap": ("textwrap.TextWrapper(width=9 + n % 30)", "v.wrap('word ' * 20)"),
    "threading": ("threading.RLock()", "(v.acquire(), v.release())"),
    "tokenize": ("tokenize.generate_tokens(iter([f'x = {n}\\n']).__next__)", "next(v).string"),
    "types": ("types.SimpleNamespace(a=n)", "(setattr(v, 'b', 1), v)"),
    "uuid": ("uuid.UUID(int=n)", "(v, uuid.uuid5(v, 'x'))"),
    "warnings": ("warnings.catch_warnings(record=True)", "v._module.__name__"),
    "weakref": ("weakref.WeakValueDictionary()", "(v.__setitem__(n, kept), len(v))"),
    "xml.etree.ElementTree": ("xml.etree.ElementTree.XML(f'<a n=\"{n}\"><b/></a>')", "xml.etree.ElementTree.tostring(v)"),
    "zipfile": ("zipfile.ZipFile(__import__('io').BytesIO(), 'w')",
                "(v.writestr(f'{len(v.namelist())}', 'x'), v.namelist())"),
    "zlib": ("zlib.compressobj()", "(v.compress(b'x' * n), v.copy().flush())"),
    "zoneinfo": ("zoneinfo.ZoneInfo('UTC')", "v.key"),
}
OF_PACKAGES = {
    "numpy": ("numpy.random.default_rng(n)", "(v.random(3).tolist(), numpy.random.random(), numpy.arange(n % 999).sum())"),
    "pandas": ("pandas.DataFrame({'a': range(n % 999 + 1), 'b': 'x'})", "(v.assign(c=v.a * 2).groupby('b').sum().to_dict())"),
    "pyarrow": ("pyarrow.array(range(n % 999))", "(v.slice(0, 3).to_pylist(), v.nbytes)"),
    # Its pool of threads, which would have to be taken, begins with its first group.
    "polars": ("polars.DataFrame({'a': range(n % 999 + 1), 'b': ['x'] * (n % 999 + 1)})",
               "(v['a'].sum(), v.rows()[:2], looking and v.group_by('b').sum().rows())"),
    "torch": ("(torch.set_num_threads(1), torch.manual_seed(n))[1]", "torch.rand(3).tolist()"),
    "sklearn.linear_model": ("sklearn.linear_model.LinearRegression().fit([[0], [n % 99 + 1]], [0, 1])", "v.coef_.tolist()"),
    "scipy.stats": ("scipy.stats.norm(n % 9, 2)", "v.cdf(3.0)"),
    "matplotlib.figure": ("matplotlib.figure.Figure()", "v.get_size_inches().tolist()"),
    "lxml.etree": ("lxml.etree.fromstring(f'<a n=\"{n}\"/>')", "lxml.etree.tostring(v)"),
    "yaml": ("yaml.safe_load(f'a: [{n}]')", "yaml.safe_dump(v)"),
    "PIL.Image": ("PIL.Image.new('RGB', (9, 9), n % 255)", "(v.putpixel((0, 0), (1, 2, 3)), hash(v.tobytes()) is not None)"),
}


#: What is no module's, in each program: made of a number `n`, and a row of what `look` shows of it, and moves on.
OF_LANGUAGE = r"""
import codecs, traceback, types
class Kept: pass
class Counted:
    made, gone = 0, []
    def __init__(self): type(self).made += 1
    def __del__(self): self.gone.append(1)
@types.coroutine
def once(x): return (yield x)
async def steps():
    for each in range(99): await once(each * n)
async def values():
    for each in range(n + 99): yield each
def asked(of):
    try: of.__anext__().send(None)
    except StopIteration as end: return end.value
def inner():
    got = yield n
    while True: got = yield (got, n)
def outer(): yield from inner()
def made():
    count = n
    def more():
        nonlocal count
        count += 1
        return count
    return more
def deep(left):
    if not left: raise ValueError(n)
    deep(left - 1)
try: deep(n % 9)
except ValueError as error: caught = error
coroutine, agenerator, chained, closure, decoder = steps(), values(), outer(), made(), codecs.getincrementaldecoder("utf-8")()
coroutine.send(None), asked(agenerator), next(chained), decoder.decode(b"\xe2\x82")
counted, octets = [Counted() for _ in range(9)], bytearray(b"abc" * (n % 99 + 1))
counted[0].me = counted[0]
window, whole = memoryview(octets), 3 ** (n % 5000)
pairs = {(each, str(each)): [each] for each in range(500)}
for each in range(0, 500, 3): del pairs[each, str(each)]
sets, ring = {frozenset((each, each + 1)) for each in range(n % 999)}, [n]
ring.append(ring)
file = open("language", "w+")
file.write("line\n" * 99), file.seek(5)
def language():
    octets[0] = (octets[0] + 1) % 256
    ring.append(len(ring))
    sets.add(n)
    pairs.setdefault("new", []).append(1)
    return (coroutine.send(None), asked(agenerator), chained.send("a"), closure(), decoder.decode(b"\xac\xe2\x82"),
            Counted().made, len(Counted.gone), counted[0].me is counted[0], window[0], whole % 1000003, len(pairs),
            list(pairs)[:3], pairs["new"], len(sets), ring[1] is ring, ring[2:], file.tell(), file.readline(),
            traceback.format_exception(caught))
"""


class Program:
    """The program *number*, of objects of some of *modules*: the `code` that makes its state, and the code that shows it."""

    def __init__(self, number: int, modules: dict[str, tuple[str, str]]) -> None:
        chosen = random.Random(number)
        names = chosen.sample(sorted(modules), min(len(modules), chosen.randrange(3, 12)))
        lines = ["import random", f"random.seed({number})", f"n = {number}", OF_LANGUAGE,
                 "kept, shows, looking = Kept(), [], False"]
        looks = []
        for place, name in enumerate(names):
            make, look = modules[name]
            lines += [f"import {name}", f"def made{place}(n={chosen.randrange(1, 100_000)}):",
                      f"    v = {make}",
                      "    def show():",
                      "        nonlocal v",
                      f"        return {look}",
                      "    return show",
                      f"shows.append(made{place}())"]
            if chosen.randrange(2):
                lines.append("shows[-1]()")
            looks.append(name)
        lines += [f"filler = [bytes([each % 256]) * {chosen.randrange(1, 5000)} for each in range(500)]", "def look():",
                  "    global looking",
                  "    looking = True",
                  "    return repr([show() for show in shows] + [language()]), hash('x'), filler[7][:3]"]
        self.code, self.names = "\n".join(lines), looks


#: Shows the state, in the original and in copies; it isn't the same twice, since it moves on.
LOOK = "look()"


def differing(daemon: LiveDaemon, modules: dict[str, tuple[str, str]], count: int, begin: leeward.Snapshot | None = None,
              **options: Any) -> list[object]:
    """
    The programs whose copies showed something else, twice: in another sandbox, in a copy of that copy, and after a rollback.
    Nine of ten begin with a state, if there is one that has imported what takes longest. *options* of the sandboxes.
    """
    found: list[object] = []
    for first in range(0, count, 50):
        with leeward.Sandbox(socket=daemon.socket, **options) as box, leeward.Sandbox(
                socket=daemon.socket, **options) as other:
            for number in range(first, min(count, first + 50)):
                program = Program(number, modules)
                with box.kernel(snapshot=begin if number % 10 else None) as kernel:
                    made = kernel.execute(program.code, timeout=90)  # some import a lot
                    assert made.ok, (number, made.error)
                    with kernel.snapshot() as snapshot:
                        for name in ("language", *(["file"] if "tempfile" in program.names else [])):
                            other.files.write(name, box.files.read(name))
                        said = [kernel.execute(LOOK).value for _ in range(2)]
                        with other.kernel(snapshot=snapshot, same_random=True) as copy, copy.snapshot() as second:
                            copied = [copy.execute(LOOK).value for _ in range(2)]
                            with other.kernel(snapshot=second, same_random=True) as copy_of_copy:
                                copied_again = [copy_of_copy.execute(LOOK).value for _ in range(2)]
                        kernel.rollback(snapshot, same_random=True)
                        again = [kernel.execute(LOOK).value for _ in range(2)]
                if not all(said) or not said == copied == copied_again == again:
                    found.append((number, program.names, said, copied, copied_again, again))
    return found
