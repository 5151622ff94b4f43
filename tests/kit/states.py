"""
Kinds of state of Python programs: how each is made, and an expression that looks at it and moves it on.

The expression has the same value in a process and in a copy of it, as often as it is evaluated in either.
"""

from __future__ import annotations

import random

Kinds = dict[str, tuple[str, str]]


def _read(text: str) -> Kinds:
    """By name: statements that make the state `it`, and behind `->` an expression of it. `n` is a small number."""
    found = {}
    for each in text.split("\n== ")[1:]:
        name, _, rest = each.partition("\n")
        code, _, look = rest.rpartition("\n-> ")
        found[name] = code, look.strip()
    return found


KINDS = _read(r"""
== argparse
import argparse
it = argparse.ArgumentParser(prog='p')
it.add_argument('--n', type=int, default=n)
-> it.parse_args([]).n, it.format_usage()
== array
import array
it = array.array('d', range(n))
-> it.append(len(it)) or it.tolist()
== ast
import ast
it = ast.parse(f'x = {n}\ny = x * 2')
-> ast.unparse(it)
== async generator
async def agen():
  for i in range(n + 9): yield i
it = agen()
def ask(a):
  try: a.__anext__().send(None)
  except StopIteration as s: return s.value
ask(it)
-> ask(it)
== base64
import base64
it = base64.b64encode(bytes(range(n)))
-> base64.b64decode(it)
== bisect
import bisect
it = sorted([n, 3, 5, 8])
-> bisect.insort(it, 4) or it
== bytearray
it = bytearray(b'abc' * n)
view = memoryview(it)
-> view[0], len(it), bytes(view[:2])
== bz2
import bz2
it = bz2.BZ2Compressor()
it.compress(b'x' * 1000 * n)
-> len(it.compress(b'y' * 99999)) if n % 2 else it.compress(b'z')
== calendar
import calendar
it = calendar.TextCalendar()
-> it.formatmonth(2000 + n, 2)
== chain of generators
def inner(m):
  got = yield m
  while True: got = yield (got, m)
def outer(): yield from inner(n)
it = outer()
next(it)
-> it.send('a')
== class
class It:
  made = 0
  def __init__(self): type(self).made += 1; self.me = self
it = [It() for _ in range(n)]
-> It().made, it[0].me is it[0], len(it)
== closure
def make():
  count = n
  def more():
    nonlocal count
    count += 1
    return count
  return more
it = make()
-> it()
== codecs
import codecs
it = codecs.getincrementaldecoder('utf-8')()
it.decode(b'\xe2\x82')
-> it.decode(b'\xac\xe2\x82')
== collections
import collections
from collections import *
it = deque(range(n), maxlen=9), Counter('hello' * n), OrderedDict(a=1, b=n), defaultdict(list)
-> (it[0].rotate(1), it[1].update('x'), it[2].move_to_end('a'), it[3][n].append(1)) and repr(it)
== configparser
import configparser
it = configparser.ConfigParser()
it.read_string(f'[a]\nb = {n}')
-> it.getint('a', 'b')
== contextvars
import contextvars
var = contextvars.ContextVar('v')
var.set(n)
it = contextvars.copy_context()
var.set(n + 1)
-> var.get(), it[var], it.run(var.get)
== coroutine
import types
@types.coroutine
def once(x): return (yield x)
async def work():
  for i in range(99): await once(i * n)
it = work()
it.send(None)
-> it.send(None)
== csv
import csv, io
it = csv.reader(io.StringIO('a,b\n1,2\n3,4\n' * n * 9))
next(it)
-> next(it), it.line_num
== ctypes
import ctypes
back = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x * n)
class Pair(ctypes.Structure): _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_double)]
it = (Pair * 3)()
it[1].a = n
-> back(7), it[1].a, ctypes.sizeof(it)
== dataclass
import dataclasses
@dataclasses.dataclass(order=True)
class D:
  a: int
  b: list
it = D(n, [n])
-> it.b.append(1) or repr(it)
== datetime
import datetime
it = datetime.datetime(2000 + n, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=n % 12)))
-> it.isoformat()
== decimal
import decimal
decimal.getcontext().prec = 10 + n
it = decimal.Decimal(2).sqrt()
-> it.sqrt(), decimal.getcontext().prec
== dict
it = {(i, str(i)): [i] for i in range(500 * n)}
for i in range(0, 500 * n, 3): del it[i, str(i)]
-> it.setdefault('new', []).append(1) or len(it), list(it)[:3], it['new']
== difflib
import difflib
it = difflib.SequenceMatcher(None, 'abcd' * n, 'bcde' * n)
-> it.ratio()
== email
import email.message
it = email.message.EmailMessage()
it['To'] = 'a@b'
it.set_content('x' * n)
-> it.as_string()
== enum
import enum
class E(enum.Flag):
  A = enum.auto()
  B = enum.auto()
it = E.A | E.B
-> repr(it), E.A in it
== exception
def deep(m):
  if not m: raise ValueError(n)
  deep(m - 1)
try: deep(n)
except ValueError as error: it = error
-> __import__('traceback').format_exception(it)
== fractions
import fractions
it = fractions.Fraction(n, 7)
-> it + 1, it.limit_denominator(3)
== functools
import functools
@functools.lru_cache(9)
def cached(x): return x * n
[cached(i % 12) for i in range(50)]
it = functools.partial(cached, 3)
-> it(), cached.cache_info()
== gzip
import gzip, io
it = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(b'line\n' * 100 * n)))
it.readline()
-> it.read(7), it.tell()
== hashlib
import hashlib
it = hashlib.sha256(b'a' * n)
-> it.update(b'b') or it.hexdigest()
== heapq
import heapq
it = [n, 5, 2, 9]
heapq.heapify(it)
-> heapq.heappushpop(it, 6), it
== hmac
import hmac
it = hmac.new(b'k' * n, b'm', 'sha1')
-> it.update(b'x') or it.hexdigest()
== io
import io
it = io.BytesIO(b'abc' * n), io.StringIO('def\n' * n)
it[0].read(2)
-> it[0].read(2), it[1].readline(), it[0].tell()
== itertools
import itertools
it = itertools.cycle(range(n + 1)), itertools.count(n)
next(it[0])
-> next(it[0]), next(it[1])
== json
import json
it = json.JSONDecoder()
-> it.decode(json.dumps({'n': [n, None, 1.5]}))
== large int
it = 3 ** (1000 * n)
-> it % 1000003, it.bit_length()
== list
it = [[i] * 3 for i in range(1000)]
it.append(it)
-> it[-1] is it, it[n].append(1) or it[n]
== logging
import io, logging
out = io.StringIO()
it = logging.getLogger(f'l{n}')
it.addHandler(logging.StreamHandler(out))
-> it.warning('w %s', n) or out.getvalue()
== lzma
import lzma
it = lzma.LZMACompressor()
it.compress(b'x' * 1000 * n)
-> len(it.compress(b'abcd' * 9999))
== objects with finalizers
gone = []
class F:
  def __del__(self): gone.append(1)
it = [F() for _ in range(n)]
it[0].me = it[0]
-> it and it.pop() and None, len(gone), len(it)
== open file
with open(f'f{n}', 'w') as made: made.write('line\n' * 99)
it = open(f'f{n}')
it.readline()
-> it.tell(), it.readline()
== pathlib
import pathlib
it = pathlib.PurePosixPath('/a') / str(n)
-> it.parts, it.with_suffix('.x')
== pickle
import pickle
it = pickle.dumps({'a': [n, 1.5, (None,)]})
-> pickle.loads(it)
== queue
import queue
it = queue.Queue()
[it.put(i) for i in range(n + 9)]
-> it.get(), it.qsize()
== random
import random
it = random.Random(n)
it.random()
-> it.random(), it.sample(range(99), 3)
== re
import re
it = re.compile(r'(a+)(b*)' + 'c?' * n)
-> it.match('aaabbb').groups(), it.flags
== rlock
import threading
it = threading.RLock()
it.acquire()
lock = threading.Lock()
lock.acquire()
-> it.acquire(timeout=1), it.release(), lock.acquire(blocking=False)
== set
it = {frozenset((i, i + 1)) for i in range(100 * n)}
-> it.add(n) or len(it), frozenset((1, 2)) in it
== signal
import signal
hits = []
signal.signal(signal.SIGUSR1, lambda *_: hits.append(n))
-> signal.raise_signal(signal.SIGUSR1) or len(hits)
== sqlite3
import sqlite3
it = sqlite3.connect(':memory:')
it.execute('create table t (x)')
it.executemany('insert into t values (?)', [(i,) for i in range(200)])
cursor = it.execute('select x from t order by x')
cursor.fetchone()
-> cursor.fetchone(), it.execute('insert into t values (0)').lastrowid
== statistics
import statistics
it = statistics.NormalDist(n, 2)
-> it.cdf(3), statistics.median([n, 1, 2])
== struct
import struct
it = struct.Struct('<IHd')
-> it.unpack(it.pack(n, 2, 1.5))
== tarfile
import io, tarfile
raw = io.BytesIO()
it = tarfile.open(fileobj=raw, mode='w')
info = tarfile.TarInfo('a')
info.size = 3
it.addfile(info, io.BytesIO(b'abc'))
-> it.getnames(), raw.tell()
== types
import types
it = types.SimpleNamespace(a=n)
module = types.ModuleType('m')
exec('x = 5', module.__dict__)
-> setattr(it, 'a', it.a + 1) or repr(it), module.x
== unicode
it = ['\u00e9\u4e2d\U0001f600' * n, 'ascii' * n]
-> [len(s.encode()) for s in it], hash(it[1]) == hash('ascii' * n)
== urllib
import urllib.parse
it = urllib.parse.urlsplit(f'https://u@h:{n}/p?q=1#f')
-> it.port, urllib.parse.parse_qs(it.query)
== uuid
import uuid
it = uuid.UUID(int=n)
-> str(it), uuid.uuid5(it, 'x').hex
== weakref
import weakref
class W: pass
keep = [W() for _ in range(n)]
it = weakref.WeakKeyDictionary({w: 1 for w in keep})
dead = weakref.ref(W())
-> keep and keep.pop() and None, len(it), dead()
== xml
import xml.etree.ElementTree as et
it = et.fromstring('<a>' + '<b c="1"/>' * n + '</a>')
-> et.SubElement(it, 'd') is None, et.tostring(it)
== zipfile
import io, zipfile
it = zipfile.ZipFile(io.BytesIO(), 'w')
it.writestr('a', 'x' * n)
-> it.namelist(), it.read('a')
== zlib
import zlib
it = zlib.compressobj()
it.compress(b'x' * 5000 * n)
-> len(it.compress(b'abc' * 9999)), zlib.crc32(b'x' * n)
""")

#: The same of packages.
PACKAGES = _read(r"""
== numpy
import numpy as np
it = np.random.default_rng(n), np.arange(1000 * n, dtype='f8').reshape(-1, 10)
-> it[0].random(3).tolist(), float((it[1].T @ it[1]).sum())
== pandas
import pandas as pd
it = pd.DataFrame({'k': list('abc') * n, 'v': range(3 * n)})
-> it.groupby('k').v.sum().to_dict(), it.shape
""")


def program(seed: int, most: int = 16, kinds: Kinds | None = None) -> tuple[str, str]:
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
