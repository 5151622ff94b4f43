"""
Files of leeward's own that programs in a sandbox find: a curl that says why it has no network, the same for `fetch`
in Node, a `fetchSync` for a Node that has one, what has a Node wait for its code, and the identity with which git
commits. Views show them (`profiles`), clients name them (`client/workdir.py`).
"""

from __future__ import annotations

from leeward.spec import warm_node
from leeward.spec.sandbox import Text

#: What begins the PATH of a program whose environment is clean: programs in it stand in for the host's.
FOLDER = "/opt/leeward/stand-ins"

#: The message that each of them prints.
DISABLED = "networking disabled: configure fetch_policy to enable"

#: curl's own exit status if a host can't be reached.
_CURL = f"""#!/bin/sh
echo '{DISABLED}' >&2
exit 7
"""

#: For `node --require`. What needs no network is fetched as ever.
FETCH = f"{FOLDER}/fetch.cjs"
_FETCH = f"""'use strict';
const node = globalThis.fetch;
const local = input => /^(data|blob):/i.test(String(input?.url ?? input));
const refusal = () => new TypeError('fetch failed: {DISABLED}');
const put = (name, value) => Object.defineProperty(globalThis, name,
  {{ value, writable: true, enumerable: true, configurable: true }});
put('fetch', async function fetch(input, init) {{
  if (local(input)) return node(input, init);
  throw refusal();
}});
put('fetchSync', function fetchSync() {{ throw refusal(); }});
"""

#: For `node --require` where a policy of egress allows a network: `fetch` is Node's own there, and `fetchSync` is one
#: in a thread for which the caller waits. The thread is made by the first call, and keeps no process alive.
FETCH_SYNC = f"{FOLDER}/fetch-sync.cjs"
_FETCH_SYNC = """'use strict';
const { Worker, MessageChannel, receiveMessageOnPort } = require('node:worker_threads');
const THREAD = `
const { workerData } = require('node:worker_threads');
workerData.port.on('message', async ({ url, init, done }) => {
  let said;
  try {
    const got = await fetch(url, init);
    const body = new Uint8Array(await got.arrayBuffer());
    const { status, statusText, url: last, redirected } = got;
    said = { status, statusText, url: last, redirected, headers: [...got.headers], body };
  } catch (error) {
    const { message, cause } = error;
    said = { failed: String(message), why: cause ? String(cause.message || cause.code || cause) : '' };
  }
  workerData.port.postMessage(said);
  Atomics.store(done, 0, 1);
  Atomics.notify(done, 0);
});`;
let port = null;
function thread() {
  const channel = new MessageChannel();
  const workerData = { port: channel.port2 };
  new Worker(THREAD, { eval: true, execArgv: [], workerData, transferList: [channel.port2] }).unref();
  channel.port1.unref();
  return channel.port1;
}
function content(body) {
  if (body === undefined || body === null) return [undefined, null];
  if (body instanceof URLSearchParams) return [String(body), 'application/x-www-form-urlencoded;charset=UTF-8'];
  if (ArrayBuffer.isView(body)) return [new Uint8Array(body.buffer, body.byteOffset, body.byteLength), null];
  if (body instanceof ArrayBuffer) return [body, null];
  if (typeof body === 'object') throw new TypeError('fetchSync takes a body of text or bytes');
  return [String(body), 'text/plain;charset=UTF-8'];
}
class SyncResponse {
  constructor({ status, statusText, url, redirected, headers, body }) {
    Object.assign(this, { status, statusText, url, redirected, headers: new Headers(headers) });
    this.body = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
  }
  get ok() { return this.status >= 200 && this.status < 300; }
  text() { return this.body.toString(); }
  json() { return JSON.parse(this.text()); }
  arrayBuffer() { return new Uint8Array(this.body).buffer; }
}
function fetchSync(input, init = {}) {
  if (input instanceof Request) throw new TypeError('fetchSync takes a URL and options, no Request');
  const [body, type] = content(init.body);
  const headers = new Headers(init.headers);
  if (type && !headers.has('content-type')) headers.set('content-type', type);
  const done = new Int32Array(new SharedArrayBuffer(4));
  port = port || thread();
  const { method, redirect } = init;
  port.postMessage({ url: String(input), init: { method, redirect, headers: [...headers], body }, done });
  Atomics.wait(done, 0, 0);
  const { message } = receiveMessageOnPort(port);
  if (message.failed === undefined) return new SyncResponse(message);
  if (!message.why) throw new TypeError(message.failed);
  throw new TypeError(`${message.failed}: ${message.why}`, { cause: new Error(message.why) });
}
Object.defineProperty(globalThis, 'fetchSync',
  { value: fetchSync, writable: true, enumerable: true, configurable: true });
"""

#: For `node --require`, behind one of the others.
WARM = f"{FOLDER}/warm.cjs"

#: A commit needs a name. A name in the repository's configuration or in the environment takes precedence.
_GIT = "[user]\n\tname = sandbox\n\temail = sandbox@localhost\n"

TEXTS = (Text(f"{FOLDER}/curl", _CURL.encode(), program=True), Text(FETCH, _FETCH.encode()),
         Text(FETCH_SYNC, _FETCH_SYNC.encode()), Text(WARM, warm_node.TEXT.encode()),
         Text("/etc/gitconfig", _GIT.encode()))
