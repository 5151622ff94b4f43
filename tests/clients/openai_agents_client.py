"""openai-agents' clients of E2B as they are, against `leeward serve e2b`. Run by test_serve_e2b.py."""

import asyncio
import io
import os
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox import Manifest


async def run(kind):
    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(kind, timeout=100)
    session = await client.create(manifest=Manifest(root="/home/user/work"), options=options)
    await session.start()
    done = await session.exec("echo hi; pwd")
    assert (0, b"hi\n/home/user/work\n") == (done.exit_code, done.stdout), done
    await session.write(Path("a.txt"), io.BytesIO(b"text"))
    assert b"text" == (await session.read(Path("a.txt"))).read()
    assert (await session.persist_workspace()).read(2)
    await client.delete(session)


for each in ("e2b", "e2b_code_interpreter"):
    asyncio.run(run(each))
# Now and then a thread of the client's HTTP library aborts at the interpreter's end.
os._exit(0)
