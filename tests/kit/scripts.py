"""Programs that are run as code and as a file, and have to do the same. No network, no packages."""

from __future__ import annotations

#: Source by what it is about.
PROGRAMS: dict[str, bytes] = {
    "latin1": b"# -*- coding: latin-1 -*-\nprint('caf\xe9', len('\xe9'))\n",
    "latin1 traceback": b"# -*- coding: latin-1 -*-\ndef f():\n    raise ValueError('\xe9')  # \xe9\nf()\n",
    "latin1 getsource": b"# -*- coding: latin-1 -*-\nimport inspect\ndef f(): return '\xe9'\nprint(inspect.getsource(f))\n",
    "cp1252": b"# coding: cp1252\nprint('\x80')\n",
    "bom": b"\xef\xbb\xbfprint('\xc3\xa9')\n",
    "bom traceback": b'\xef\xbb\xbf1/0\n',
    "bad utf8": b"print(1)\nx = '\xff'\n",
    "unknown encoding": b"""\
# coding: nonesuch
print(1)
""",
    "utf8 traceback": b"def f():\n    raise ValueError('\xe2\x82\xac')  # \xe2\x82\xac\xe2\x82\xac\nf()\n",
    "wide caret": b"x = 1\n'\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac' + (x + None) + '\xc3\xa9'\n",
    "crlf": b"if 1:\r\n    print('a')\r\n    1/0\r\n",
    "cr": b"print('a')\rprint('b')\r",
    "formfeed": b'print(1)\n\x0c\ndef f():\n    1/0\n\x0c\nf()\n',
    "line separator": b"x = 'a\xe2\x80\xa8b'\ndef f():\n    1/0\nf()\n",
    "vertical tab in string": b"""\
x = 'abc'
def f():
    1/0
f()
""",
    "null byte": b'print(1)\n\x00\n',
    "no newline": b"""\
def f(): 1/0
f()
""",
    "empty": b'',
    "future annotations": b"""\
from __future__ import annotations
def f(x: Nope): pass
print(f.__annotations__)
""",
    "future late": b"""\
x = 1
from __future__ import annotations
""",
    "future unknown": b"""\
from __future__ import nope
""",
    "future inherited": b"""\
from __future__ import annotations
ns = {}
exec('def f(x: Nope): pass', ns)
print(ns['f'].__annotations__)
print(compile('def g(x: 1): pass','x','exec').co_flags & 0x1000000)
""",
    "no future inherited": b"""\
ns = {}
exec('def f(x: 1): pass', ns)
print(ns['f'].__annotations__, compile('1','x','eval').co_flags)
""",
    "flags of main": b"""\
import sys
print(sys._getframe().f_code.co_flags, sys._getframe().f_code.co_name)
""",
    "main dict": b"""\
import sys
x = 1
print(sys.modules['__main__'].__dict__ is globals(), sys.modules['__main__'].x, __name__, __package__, __spec__)
""",
    "import main": b"""\
import __main__
x = 5
print(__main__.x, __main__ is __import__('sys').modules['__main__'])
""",
    "main names": b'print(sorted(k for k in globals()))',
    "file": b"""\
import os
print(os.path.basename(__file__), os.path.isfile(__file__))
""",
    "doc": b"""\
'''the doc'''
print(__doc__)
""",
    "no doc": b"""\
x = 1
print(__doc__)
""",
    "annotations": b"""\
x: int = 1
y: 'str'
print(__annotations__)
""",
    "name guard": b"""\
def main():
    print('main')
if __name__ == '__main__':
    main()
""",
    "pickle class": b"""\
import pickle
class A:
    def __init__(self): self.x = 1
b = pickle.loads(pickle.dumps(A()))
print(b.x, type(b) is A, A.__module__, A.__qualname__)
""",
    "copy dataclass": b"""\
import copy, dataclasses
@dataclasses.dataclass
class A:
    x: int = 1
print(copy.deepcopy(A(2)), repr(A))
""",
    "pickle enum": b"""\
import pickle, enum
class E(enum.Enum):
    A = 1
print(pickle.loads(pickle.dumps(E.A)) is E.A)
""",
    "namedtuple": b"""\
import pickle, collections
T = collections.namedtuple('T', 'a b')
print(pickle.loads(pickle.dumps(T(1,2))), T.__module__)
""",
    "pickle lambda": b"""\
import pickle
try:
    pickle.dumps(lambda: 1)
except Exception as e:
    print(type(e).__name__, str(e).partition(' at ')[0])
""",
    "getsource function": b"""\
import inspect
def f(a):
    # a comment
    return a
print(inspect.getsource(f))
""",
    "getsource class": b"""\
import inspect
class A:
    x = 1
    def m(self): return 2
print(inspect.getsource(A))
print(inspect.getsource(A.m))
""",
    "getsource dataclass": b"""\
import dataclasses, inspect
class Other: pass
@dataclasses.dataclass
class A:
    x: int = 1
class B(A): y = 2
print(inspect.getsource(A), inspect.getsource(B), inspect.getsourcelines(Other))
""",
    "getsource of none": b"""\
import inspect
for thing in (type('C', (), {}), int, inspect.ismodule, __import__('sys')):
    try:
        print(inspect.getsource(thing)[:12])
    except (OSError, TypeError) as e:
        print(type(e).__name__)
""",
    "getsource module": b"""\
import inspect, sys
print(inspect.getsource(sys.modules['__main__'])[:20])
""",
    "getsourcelines": b"""\
import inspect

def f(): pass
print(inspect.getsourcelines(f), inspect.getcomments(f))
""",
    "getsource lambda": b"""\
import inspect
g = lambda x: x + 1
print(inspect.getsource(g))
""",
    "linecache": b"""\
import linecache
print(repr(linecache.getline((lambda: 0).__code__.co_filename, 1)))
""",
    "stack": b"""\
import inspect
def f(): return [(i.function, i.lineno, i.code_context) for i in inspect.stack()]
print(f())
""",
    "traceback": b"""\
def f(n):
    return 1 / n

def g():
    f(0)

g()
""",
    "chained": b"""\
try:
    1/0
except Exception as e:
    raise KeyError('k') from e
""",
    "context": b"""\
try:
    1/0
except Exception:
    {}['a']
""",
    "group": b"""\
raise ExceptionGroup('g', [ValueError(1), TypeError(2)])
""",
    "note": b"""\
e = ValueError('v')
e.add_note('a note')
raise e
""",
    "nested frames": b"""\
def f(n):
    if n: return f(n - 1)
    raise ValueError
f(9)
""",
    "recursion": b"""\
def f(): f()
try:
    f()
except RecursionError as e:
    print(e)
""",
    "format_exc": b"""\
import traceback
try:
    1/0
except Exception:
    print(traceback.format_exc())
""",
    "print_stack": b"""\
import traceback, sys
def f(): traceback.print_stack(file=sys.stdout)
f()
""",
    "suggestion": b"""\
import os
os.pathh
""",
    "name suggestion": b"""\
value = 1
print(valeu)
""",
    "import error": b"""\
import nonesuch
""",
    "from import error": b"""\
from os import nonesuch
""",
    "syntax error": b"""\
x = = 1
""",
    "unclosed": b"""\
x = (1,
y = 2
""",
    "unterminated": b"""\
x = 'abc
""",
    "unterminated triple": b"""\
x = '''abc
""",
    "indent error": b"""\
if 1:
print(1)
""",
    "dedent error": b"""\
if 1:
        a
    b
""",
    "tab error": b"""\
if 1:
        a = 1
	b = 2
""",
    "return outside": b"""\
print(1)
return 5
""",
    "await outside": b"""\
import asyncio
await asyncio.sleep(0)
""",
    "print statement": b"""\
print 'x'
""",
    "nonlocal": b"""\
nonlocal x
""",
    "syntax warning": b"""\
x = 1
if x is 1: print('yes')
""",
    "escape warning": b"import warnings\nprint('\\d')\n",
    "warn": b"""\
import warnings
warnings.warn('careful')
def f():
    warnings.warn('two', DeprecationWarning, stacklevel=2)
f()
""",
    "warn error": b"""\
import warnings
warnings.simplefilter('error')
warnings.warn('now')
""",
    "deprecation in main": b"""\
import warnings
warnings.warn('old', DeprecationWarning)
""",
    "warning registry": b"""\
import warnings
for _ in range(3): warnings.warn('once')
""",
    "argv": b"""\
import sys
print(len(sys.argv), sys.argv[1:])
""",
    "argv0": b"""\
import sys
print(sys.argv[0])
""",
    "exit 3": b"""\
import sys
print('a')
sys.exit(3)
""",
    "exit text": b"""\
import sys
sys.exit('gone wrong')
""",
    "exit big": b"""\
import sys
sys.exit(256 + 7)
""",
    "exit huge": b"""\
import sys
sys.exit(2**70)
""",
    "exit tuple": b"""\
import sys
sys.exit((1, 2))
""",
    "exit builtin": b'exit(5)',
    "thread exception": b"""\
import threading
def f(): 1/0
t = threading.Thread(target=f, name='T')
t.start()
t.join()
""",
    "thread name error": b"""\
import threading
def f(): valeu
value = 1
t = threading.Thread(target=f, name='T')
t.start()
t.join()
""",
    "thread exit": b"""\
import sys, threading
t = threading.Thread(target=sys.exit, args=(3,))
t.start()
t.join()
print(threading.excepthook is threading.__excepthook__)
""",
    "unraisable": b"""\
class A:
    def __del__(self):
        1/0
class B:
    def __del__(self):
        raise KeyError('k') from ValueError('v')
a, b = A(), B()
del a, b
""",
    "excepthook exits": b"""\
import sys
sys.excepthook = lambda *a: sys.exit(9)
1 / 0
""",
    "excepthook fails": b"""\
import sys
sys.excepthook = lambda *a: {}['hook']
1 / 0
""",
    "output is lost": b"""\
import os
print('x', end='')
os.close(1)
""",
    "stream cannot be flushed": b"""\
import sys
class Stream:
    def write(self, text): pass
    def flush(self): {}['flush']
sys.stdout = Stream()
""",
    "no standard error": b"""\
import sys
sys.stderr = None
sys.exit('last words')
""",
    "excepthook": b"""\
import sys
sys.excepthook = lambda *a: print('hook', a[0].__name__)
1/0
""",
    "exec compile": b"exec(compile('x = 1\\nprint(x)', 'inner', 'exec'))\nexec('1/0')",
    "eval locals": b"""\
x = 1
print(eval('x'), locals() is globals(), sorted(vars()) == sorted(globals()))
""",
    "unittest": b"""\
import unittest
class T(unittest.TestCase):
    def test_a(self): self.assertEqual(1, 1)
    def test_b(self): self.assertEqual(1, 2)
unittest.main(verbosity=2)
""",
    "doctest": b"""\
def f(x):
    '''
    >>> f(1)
    3
    '''
    return x + 1
import doctest
print(doctest.testmod())
""",
    "type hints": b"""\
import dataclasses, typing
@dataclasses.dataclass
class Node:
    next: 'typing.Optional[Node]' = None
print(typing.get_type_hints(Node))
""",
    "type hints future": b"""\
from __future__ import annotations
import dataclasses, typing
@dataclasses.dataclass
class Node:
    next: Node | None = None
    kind: typing.ClassVar[int] = 1
print(typing.get_type_hints(Node), [f.name for f in dataclasses.fields(Node)])
""",
    "type checking": b"""\
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import nonesuch
print(TYPE_CHECKING)
""",
    "typeddict": b"""\
import typing
class D(typing.TypedDict):
    a: int
print(D.__module__, typing.get_type_hints(D))
""",
    "mp fork": b"""\
import multiprocessing as m
def f(x): return x * 2
if __name__ == '__main__':
    with m.get_context('fork').Pool(2) as p: print(p.map(f, [1, 2]))
""",
    "mp process error": b"""\
import multiprocessing as m
def f(): 1/0
if __name__ == '__main__':
    w = m.get_context('fork').Process(target=f, name='W')
    w.start()
    w.join()
    print(w.exitcode)
""",
    "process pool": b"""\
from concurrent.futures import ProcessPoolExecutor
def f(x): return x + 1
if __name__ == '__main__':
    with ProcessPoolExecutor(1) as p: print(list(p.map(f, [1])))
""",
    "os fork": b"""\
import os, sys
if not os.fork():
    print('child')
    sys.exit(0)
os.wait()
print('parent')
""",
    "asyncio run": b"""\
import asyncio
async def main():
    await asyncio.sleep(0)
    return asyncio.get_running_loop().is_running()
print(asyncio.run(main()))
""",
    "asyncio no loop": b"""\
import asyncio
try:
    asyncio.get_running_loop()
except RuntimeError as e:
    print(e)
""",
    "asyncio error": b"""\
import asyncio
async def f(): 1/0
asyncio.run(f())
""",
    "atexit": b"""\
import atexit
atexit.register(print, 'bye')
print('hi')
""",
    "stdin": b"""\
import sys
print(repr(sys.stdin.read()))
""",
    "input": b"""\
try:
    input('? ')
except EOFError as e:
    print(e)
""",
    "encodings of streams": b"""\
import sys
print(sys.stdout.encoding, sys.stderr.errors, sys.getdefaultencoding(), sys.getfilesystemencoding())
""",
    "surrogate print": b"print('\\udcff')",
    "write then exit": b"""\
import sys
sys.stdout.write('no newline')
sys.exit(2)
""",
    "assert": b"""\
assert 1 == 2, 'not equal'
""",
    "logging exception": b"""\
import logging
logging.basicConfig(format='%(filename)s:%(lineno)d %(funcName)s %(message)s')
try:
    1/0
except Exception:
    logging.exception('oops')
""",
    "indented": b"""\
    print(1)
""",
    "last expression": b"""\
1 + 1
""",
    "underscore": b"""\
_ = 3
print(_)
5
""",
    "semicolon": b"""\
x = 1; x;
print(x)
""",
    "flags": b"""\
import sys
print(sys.flags.interactive, sys.flags.optimize, sys.flags.dont_write_bytecode, __debug__)
""",
    "signal": b"""\
import signal
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM))
""",
    "threads": b"""\
import threading
print(threading.current_thread().name, threading.active_count(), threading.main_thread() is threading.current_thread())
""",
    "nondaemon thread": b"""\
import threading, time
def f():
    time.sleep(0.05)
    print('thread')
threading.Thread(target=f).start()
print('main')
""",
    "inspect signature": b"""\
import inspect
def f(a, *, b: 'int' = 1): pass
print(inspect.signature(f), inspect.getfile(f) == f.__code__.co_filename)
""",
    "trace": b"""\
import sys
seen = []
def t(frame, event, arg):
    seen.append((event, frame.f_lineno))
    return t
def f():
    return 1
sys.settrace(t)
f()
sys.settrace(None)
print(seen[:3])
""",
    "timeit": b"""\
import timeit
x = 1
print(timeit.timeit('x', globals=globals(), number=1) >= 0, timeit.timeit('from __main__ import x', number=1) >= 0)
""",
    "spawn": b"""\
import multiprocessing as m
def f(): print('in a child', __name__)
if __name__ == '__main__':
    child = m.get_context('spawn').Process(target=f)
    child.start()
    child.join()
    print(child.exitcode)
""",
    "spawn pool": b"""\
import multiprocessing as m
from concurrent.futures import ProcessPoolExecutor
class A:
    def __init__(self, x): self.x = x
def f(a): return A(a.x * 2)
if __name__ == '__main__':
    with m.get_context('spawn').Pool(1) as p: print([each.x for each in p.map(f, [A(1), A(2)])])
    with ProcessPoolExecutor(1, m.get_context('forkserver')) as p: print(p.submit(f, A(3)).result().x)
""",
    "spawn error": b"""\
import multiprocessing as m
def f(): raise ValueError('in the child')
if __name__ == '__main__':
    child = m.get_context('spawn').Process(target=f, name='C')
    child.start()
    child.join()
    print(child.exitcode)
""",
    "forkserver": b"""\
import multiprocessing as m
def f(): print('in a child', __name__)
if __name__ == '__main__':
    child = m.get_context('forkserver').Process(target=f)
    child.start()
    child.join()
    print(child.exitcode)
""",
}
