"""
A Node that is started before its code is known, and then runs it as `node -e` would. Views show the file (`stand_ins`),
clients name it (`client/workdir.py`).

Theory of operation. `node --require WARM -e PROBE` boots, and stops where Node is about to compile what -e says: the
wrapper of it is compiled by `Module.prototype._compile`, which is public. There it reads all of its standard input,
which is the code. The code has to be compiled and run by this file, and no longer by Node's own functions, so functions
of the same names, files, lines and columns stand in for these on the stack. That a stack trace is then the same, letter
for letter, is tried with PROBE before the code is read: a version of Node where it isn't ends with DECLINED, and
so does one whose code isn't a script (a syntax error, `import`, a top-level await, TypeScript). The client then runs
`node -e`. NEEDS_NODE finds other code that only Node itself runs as it is: `crypto` has a meaning of its own,
import() tells who imports, text that is run could have an import(), and threads inherit the words of Node's start.
Source:    lib/internal/process/execution.js of Node 20 to 26
"""

from __future__ import annotations

import re

#: The exit code of a Node that didn't run its code, and the beginning of the line on stderr with the reason.
DECLINED, DECLINES = 81, b"leeward: this Node can't wait: "

#: The argument of -e, in place of the code.
PROBE = "leewardProbe(new Error())"

#: A pattern of code that isn't given to a waiting Node.
NEEDS_NODE = re.compile(r"\b(?:crypto|eval|Function|import|worker_threads)\b")

TEXT = rf"""'use strict';
const {{ closeSync, openSync, readFileSync, writeSync }} = require('node:fs');
const Module = require('node:module');
const vm = require('node:vm');
const {{ isMainThread }} = require('node:worker_threads');

const FRAME = /^ {{4}}at (?:([\w$]+) \()?(.+):(\d+):(\d+)\)?$/;
const OPTIONS = {{ filename: '[eval]', importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER }};
const probe = process._eval;
const run = Object.getPrototypeOf(vm.Script.prototype).runInContext;

function decline(why) {{
  writeSync(2, `{DECLINES.decode()}${{why}}\n`);
  process.reallyExit({DECLINED});
}}

/* A function that calls `what` and looks like the one of a line of a stack trace. */
function lookalike([, name, filename, line, column], what, before = '') {{
  const head = name ? `function ${{name}}(main)` : '(main) =>';
  const call = `${{' '.repeat(column - 1)}}${{what}}`;
  const code = `'use strict'; (what, rest) => ${{head}} {{ ${{before}}return (\n${{call}}) }}`;
  const script = new vm.Script(code, {{ filename, lineOffset: line - 2 }});
  return script.runInThisContext();
}}

/* What Node calls to run what -e says, for another script; `frames` are those of its own functions. */
function chain(script, frames) {{
  const [first, ...others] = frames;
  const inner = lookalike(first, 'what(...rest)')(Reflect.apply, [run, script, [null, -1, true, false, false]]);
  return others.reduce((made, each) => lookalike(each, 'what()')(made), inner);
}}

function traced(call) {{
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = 64;
  try {{
    return call().split('\n').slice(1);
  }} finally {{
    Error.stackTraceLimit = limit;
  }}
}}

function given() {{
  const code = readFileSync(0, 'utf8');
  closeSync(0);
  if (openSync('/dev/null', 'r') !== 0) decline('its standard input is another');
  return code;
}}

/* Take away what programs could see of this file. */
function leave(code) {{
  delete globalThis.leewardProbe;
  delete require.cache[__filename];
  for (const [key, file] of Object.entries(Module._pathCache)) if (file === __filename) delete Module._pathCache[key];
  Object.defineProperty(process, '_eval', {{ ...Object.getOwnPropertyDescriptor(process, '_eval'), value: code }});
  const words = process.execArgv;
  words.splice(words.lastIndexOf(__filename) - 1, 2);
  words[words.length - 1] = code;
  /^/.exec(''); // as Node does before it runs what -e says
}}

function waits(wrapper, main) {{
  let frames = null;
  const [real, ours] = [() => main, () => chain(new vm.Script(probe, OPTIONS), frames)].map((made) => {{
    const call = made();
    const lines = traced(() => wrapper(call));
    const end = lines.findIndex((line) => line.includes('[eval]-wrapper'));
    frames ??= lines.slice(1, end).map((line) => FRAME.exec(line));
    if (!frames.length || frames.includes(null)) decline(lines.join('|'));
    return lines.join('|');
  }});
  if (real !== ours) decline(`${{real}} is not ${{ours}}`);
  const code = given();
  let script;
  try {{
    script = new vm.Script(code, OPTIONS);
  }} catch {{
    decline('this is no script');
  }}
  const made = chain(script, frames);
  leave(code);
  return made;
}}

if (isMainThread) {{
  globalThis.leewardProbe = (error) => error.stack;
  const {{ _compile }} = Module.prototype;
  Module.prototype._compile = function compile(...args) {{
    if (args[1] !== '[eval]-wrapper') return Reflect.apply(_compile, this, args);
    Module.prototype._compile = _compile;
    const wrapper = Reflect.apply(_compile, this, args);
    const whence = () => new Error().stack;
    const own = traced(() => wrapper(whence))[1];
    const place = FRAME.exec(own);
    if (!place) decline(own);
    const stand = lookalike(place, 'main()', 'main = what(main); ');
    if (traced(() => stand((main) => main)(whence))[1] !== own) decline(`no ${{own}}`);
    return stand((main) => waits(wrapper, main));
  }};
}}
"""
