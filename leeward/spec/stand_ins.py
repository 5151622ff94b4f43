"""
Files of leeward's own that programs in a sandbox find: a curl that says why it has no network, the same for `fetch`
in Node, and the identity with which git commits.

Runs in:   anywhere; pure. Views show them (`profiles`), clients name them (`client/workdir.py`).
"""

from __future__ import annotations

from leeward.spec.sandbox import Text

#: What begins the PATH of a program whose environment is clean: programs in it stand in for the host's.
FOLDER = "/opt/leeward/stand-ins"

#: What each of them says.
DISABLED = "networking disabled: configure fetch_policy to enable"

#: curl's own status where a host can't be reached.
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

#: A commit needs a name. What a repository or the environment says goes before it.
_GIT = "[user]\n\tname = sandbox\n\temail = sandbox@localhost\n"

TEXTS = (Text(f"{FOLDER}/curl", _CURL.encode(), program=True), Text(FETCH, _FETCH.encode()),
         Text("/etc/gitconfig", _GIT.encode()))
