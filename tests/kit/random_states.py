"""
Programs whose states are compared: each makes some objects of some modules, and shows them and what they do next.

A program is chosen by its number. Where the state of one was taken, it and each copy must show the same: the objects, what
iterators and generators give next, random numbers, the position of a file. Left out is what copies don't have, by
docs/snapshots.md: the time, process numbers, and objects on sockets, such as an event loop that was there before.
"""

from __future__ import annotations

import random

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


class Program:
    """The program *number*, of objects of some of *modules*: the `code` that makes its state, and the code that shows it."""

    def __init__(self, number: int, modules: dict[str, tuple[str, str]]) -> None:
        chosen = random.Random(number)
        names = chosen.sample(sorted(modules), min(len(modules), chosen.randrange(3, 12)))
        lines = ["import importlib, random", f"random.seed({number})", "class Kept: pass",
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
        #: Objects in cycles, a generator in the middle, and memory of its own.
        lines += [f"ring = [{number}]", "ring.append(ring)", "def count():", "    yield from range(1000)",
                  "counter = count()", "next(counter)",
                  f"filler = [bytes([each % 256]) * {chosen.randrange(1, 5000)} for each in range(500)]", "def look():",
                  "    global looking",
                  "    looking = True",
                  "    return repr([show() for show in shows]), next(counter), len(ring), hash('x'), filler[7][:3]"]
        self.code, self.names = "\n".join(lines), looks


#: Shows the state, in the original and in copies; it isn't the same twice, since it moves on.
LOOK = "look()"
