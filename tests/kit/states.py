"""
Kinds of state of Python programs: how each is made, and an expression that looks at it and moves it on.

The expression has the same value in a process and in a copy of it, as often as it is evaluated in either.
"""

from __future__ import annotations

import random

#: By name: statements that make the state `it`, and an expression of it. `n` is a small random number.
KINDS: dict[str, tuple[str, str]] = {
    "argparse": ("import argparse\nit = argparse.ArgumentParser(prog='p')\nit.add_argument('--n', type=int, default=n)",
                 "it.parse_args([]).n, it.format_usage()"),
    "array": ("import array\nit = array.array('d', range(n))", "it.append(len(it)) or it.tolist()"),
    "ast": ("import ast\nit = ast.parse(f'x = {n}\\ny = x * 2')", "ast.unparse(it)"),
    "async generator": ("async def agen():\n  for i in range(n + 9): yield i\nit = agen()\ndef ask(a):\n"
                        "  try: a.__anext__().send(None)\n  except StopIteration as s: return s.value\nask(it)", "ask(it)"),
    "base64": ("import base64\nit = base64.b64encode(bytes(range(n)))", "base64.b64decode(it)"),
    "bisect": ("import bisect\nit = sorted([n, 3, 5, 8])", "bisect.insort(it, 4) or it"),
    "bytearray": ("it = bytearray(b'abc' * n)\nview = memoryview(it)", "view[0], len(it), bytes(view[:2])"),
    "bz2": ("import bz2\nit = bz2.BZ2Compressor()\nit.compress(b'x' * 1000 * n)",
            "len(it.compress(b'y' * 99999)) if n % 2 else it.compress(b'z') "),
    "calendar": ("import calendar\nit = calendar.TextCalendar()", "it.formatmonth(2000 + n, 2)"),
    "chain of generators": ("def inner(m):\n  got = yield m\n  while True: got = yield (got, m)\ndef outer(): yield from inner(n)\n"
                            "it = outer()\nnext(it)", "it.send('a')"),
    "class": ("class It:\n  made = 0\n  def __init__(self): type(self).made += 1; self.me = self\nit = [It() for _ in range(n)]",
              "It().made, it[0].me is it[0], len(it)"),
    "closure": ("def make():\n  count = n\n  def more():\n    nonlocal count\n    count += 1\n    return count\n  return more\nit = make()",
                "it()"),
    "codecs": ("import codecs\nit = codecs.getincrementaldecoder('utf-8')()\nit.decode(b'\\xe2\\x82')", "it.decode(b'\\xac\\xe2\\x82')"),
    "collections": ("import collections\nit = collections.deque(range(n), maxlen=9), collections.Counter('hello' * n),"
                    " collections.OrderedDict(a=1, b=n), collections.defaultdict(list)",
                    "(it[0].rotate(1), it[1].update('x'), it[2].move_to_end('a'), it[3][n].append(1)) and repr(it)"),
    "configparser": ("import configparser\nit = configparser.ConfigParser()\nit.read_string(f'[a]\\nb = {n}')", "it.getint('a', 'b')"),
    "contextvars": ("import contextvars\nvar = contextvars.ContextVar('v')\nvar.set(n)\nit = contextvars.copy_context()\nvar.set(n + 1)",
                    "var.get(), it[var], it.run(var.get)"),
    "coroutine": ("import types\n@types.coroutine\ndef once(x): return (yield x)\nasync def work():\n"
                  "  for i in range(99): await once(i * n)\nit = work()\nit.send(None)", "it.send(None)"),
    "csv": ("import csv, io\nit = csv.reader(io.StringIO('a,b\\n1,2\\n3,4\\n' * n * 9))\nnext(it)", "next(it), it.line_num"),
    "ctypes": ("import ctypes\nback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x * n)\n"
               "class Pair(ctypes.Structure): _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_double)]\nit = (Pair * 3)()\nit[1].a = n",
               "back(7), it[1].a, ctypes.sizeof(it)"),
    "dataclass": ("import dataclasses\n@dataclasses.dataclass(order=True)\nclass D:\n  a: int\n  b: list\nit = D(n, [n])",
                  "it.b.append(1) or repr(it)"),
    "datetime": ("import datetime\nit = datetime.datetime(2000 + n, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=n % 12)))",
                 "it.isoformat()"),
    "decimal": ("import decimal\ndecimal.getcontext().prec = 10 + n\nit = decimal.Decimal(2).sqrt()", "it.sqrt(), decimal.getcontext().prec"),
    "dict": ("it = {(i, str(i)): [i] for i in range(500 * n)}\nfor i in range(0, 500 * n, 3): del it[i, str(i)]",
             "it.setdefault('new', []).append(1) or len(it), list(it)[:3], it['new']"),
    "difflib": ("import difflib\nit = difflib.SequenceMatcher(None, 'abcd' * n, 'bcde' * n)", "it.ratio()"),
    "email": ("import email.message\nit = email.message.EmailMessage()\nit['To'] = 'a@b'\nit.set_content('x' * n)", "it.as_string()"),
    "enum": ("import enum\nclass E(enum.Flag):\n  A = enum.auto()\n  B = enum.auto()\nit = E.A | E.B", "repr(it), E.A in it"),
    "exception": ("def deep(m):\n  if not m: raise ValueError(n)\n  deep(m - 1)\ntry: deep(n)\nexcept ValueError as error: it = error",
                  "__import__('traceback').format_exception(it)"),
    "fractions": ("import fractions\nit = fractions.Fraction(n, 7)", "it + 1, it.limit_denominator(3)"),
    "functools": ("import functools\n@functools.lru_cache(9)\ndef cached(x): return x * n\n[cached(i % 12) for i in range(50)]\n"
                  "it = functools.partial(cached, 3)", "it(), cached.cache_info()"),
    "gzip": ("import gzip, io\nit = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(b'line\\n' * 100 * n)))\nit.readline()", "it.read(7), it.tell()"),
    "hashlib": ("import hashlib\nit = hashlib.sha256(b'a' * n)", "it.update(b'b') or it.hexdigest()"),
    "heapq": ("import heapq\nit = [n, 5, 2, 9]\nheapq.heapify(it)", "heapq.heappushpop(it, 6), it"),
    "hmac": ("import hmac\nit = hmac.new(b'k' * n, b'm', 'sha1')", "it.update(b'x') or it.hexdigest()"),
    "io": ("import io\nit = io.BytesIO(b'abc' * n), io.StringIO('def\\n' * n)\nit[0].read(2)", "it[0].read(2), it[1].readline(), it[0].tell()"),
    "itertools": ("import itertools\nit = itertools.cycle(range(n + 1)), itertools.count(n)\nnext(it[0])", "next(it[0]), next(it[1])"),
    "json": ("import json\nit = json.JSONDecoder()", "it.decode(json.dumps({'n': [n, None, 1.5]}))"),
    "large int": ("it = 3 ** (1000 * n)", "it % 1000003, it.bit_length()"),
    "list": ("it = [[i] * 3 for i in range(1000)]\nit.append(it)", "it[-1] is it, it[n].append(1) or it[n]"),
    "logging": ("import io, logging\nout = io.StringIO()\nit = logging.getLogger(f'l{n}')\nit.addHandler(logging.StreamHandler(out))",
                "it.warning('w %s', n) or out.getvalue()"),
    "lzma": ("import lzma\nit = lzma.LZMACompressor()\nit.compress(b'x' * 1000 * n)", "len(it.compress(b'abcd' * 9999))"),
    "objects with finalizers": ("gone = []\nclass F:\n  def __del__(self): gone.append(1)\nit = [F() for _ in range(n)]\nit[0].me = it[0]",
                                "it and it.pop() and None, len(gone), len(it)"),
    "open file": ("with open(f'f{n}', 'w') as made: made.write('line\\n' * 99)\nit = open(f'f{n}')\nit.readline()", "it.tell(), it.readline()"),
    "pathlib": ("import pathlib\nit = pathlib.PurePosixPath('/a') / str(n)", "it.parts, it.with_suffix('.x')"),
    "pickle": ("import pickle\nit = pickle.dumps({'a': [n, 1.5, (None,)]})", "pickle.loads(it)"),
    "queue": ("import queue\nit = queue.Queue()\n[it.put(i) for i in range(n + 9)]", "it.get(), it.qsize()"),
    "random": ("import random\nit = random.Random(n)\nit.random()", "it.random(), it.sample(range(99), 3)"),
    "re": ("import re\nit = re.compile(r'(a+)(b*)' + 'c?' * n)", "it.match('aaabbb').groups(), it.flags"),
    "rlock": ("import threading\nit = threading.RLock()\nit.acquire()\nlock = threading.Lock()\nlock.acquire()",
              "it.acquire(timeout=1), it.release(), lock.acquire(blocking=False)"),
    "set": ("it = {frozenset((i, i + 1)) for i in range(100 * n)}", "it.add(n) or len(it), frozenset((1, 2)) in it"),
    "signal": ("import signal\nhits = []\nsignal.signal(signal.SIGUSR1, lambda *_: hits.append(n))",
               "signal.raise_signal(signal.SIGUSR1) or len(hits)"),
    "sqlite3": ("import sqlite3\nit = sqlite3.connect(':memory:')\nit.execute('create table t (x)')\n"
                "it.executemany('insert into t values (?)', [(i,) for i in range(200)])\ncursor = it.execute('select x from t order by x')\ncursor.fetchone()",
                "cursor.fetchone(), it.execute('insert into t values (0)').lastrowid"),
    "statistics": ("import statistics\nit = statistics.NormalDist(n, 2)", "it.cdf(3), statistics.median([n, 1, 2])"),
    "struct": ("import struct\nit = struct.Struct('<IHd')", "it.unpack(it.pack(n, 2, 1.5))"),
    "tarfile": ("import io, tarfile\nraw = io.BytesIO()\nit = tarfile.open(fileobj=raw, mode='w')\ninfo = tarfile.TarInfo('a')\n"
                "info.size = 3\nit.addfile(info, io.BytesIO(b'abc'))", "it.getnames(), raw.tell()"),
    "types": ("import types\nit = types.SimpleNamespace(a=n)\nmodule = types.ModuleType('m')\nexec('x = 5', module.__dict__)",
              "setattr(it, 'a', it.a + 1) or repr(it), module.x"),
    "unicode": ("it = ['\\u00e9\\u4e2d\\U0001f600' * n, 'ascii' * n]", "[len(s.encode()) for s in it], hash(it[1]) == hash('ascii' * n)"),
    "urllib": ("import urllib.parse\nit = urllib.parse.urlsplit(f'https://u@h:{n}/p?q=1#f')", "it.port, urllib.parse.parse_qs(it.query)"),
    "uuid": ("import uuid\nit = uuid.UUID(int=n)", "str(it), uuid.uuid5(it, 'x').hex"),
    "weakref": ("import weakref\nclass W: pass\nkeep = [W() for _ in range(n)]\nit = weakref.WeakKeyDictionary({w: 1 for w in keep})\n"
                "dead = weakref.ref(W())", "keep and keep.pop() and None, len(it), dead()"),
    "xml": ("import xml.etree.ElementTree as et\nit = et.fromstring('<a>' + '<b c=\"1\"/>' * n + '</a>')",
            "et.SubElement(it, 'd') is None, et.tostring(it)"),
    "zipfile": ("import io, zipfile\nit = zipfile.ZipFile(io.BytesIO(), 'w')\nit.writestr('a', 'x' * n)", "it.namelist(), it.read('a')"),
    "zlib": ("import zlib\nit = zlib.compressobj()\nit.compress(b'x' * 5000 * n)", "len(it.compress(b'abc' * 9999)), zlib.crc32(b'x' * n)"),
}

#: The same of packages.
PACKAGES: dict[str, tuple[str, str]] = {
    "numpy": ("import numpy as np\nit = np.random.default_rng(n), np.arange(1000 * n, dtype='f8').reshape(-1, 10)",
              "it[0].random(3).tolist(), float((it[1].T @ it[1]).sum())"),
    "pandas": ("import pandas as pd\nit = pd.DataFrame({'k': list('abc') * n, 'v': range(3 * n)})",
               "it.groupby('k').v.sum().to_dict(), it.shape"),
}


def program(seed: int, most: int = 16, kinds: dict[str, tuple[str, str]] | None = None) -> tuple[str, str]:
    """
    A random state: code that makes it, and code whose value looks at it. Each kind is in a module of its own, so that no
    name is another one's.
    """
    chosen = random.Random(seed)
    known = KINDS if kinds is None else kinds
    names = chosen.sample(sorted(known), min(most, len(known)))
    made = ["import types\nstates = {}"]
    made += [f"states[{name!r}] = space = {{'__name__': '__main__', 'n': {chosen.randrange(1, 9)}}}\n"
             f"exec({known[name][0]!r}, space)" for name in names]
    looks = ", ".join(f"({name!r}, look({name!r}, {known[name][1]!r}))" for name in names)
    look = "def look(name, code):\n  try: return eval(code, states[name])\n  except Exception as error: return repr(error)\n"
    return "\n".join(made), f"{look}[{looks}]"
