"""
litellm's code interpreter as it is, against `leeward serve e2b` with TLS below a name. Run by test_serve_e2b.py.

The names of sandboxes, which a wildcard record would have, are this host's here.
"""

import asyncio
import os
import socket

from litellm.sandbox import main as sandbox

ask = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: ask("127.0.0.1", *rest, **more)
API = f"https://api.{os.environ['E2B_DOMAIN']}"


async def main():
    ran = await sandbox.acode_interpreter_tool("e2b", "print('said'); 6 * 7", api_base=API)
    assert "said" in ran.stdout, ran
    container = await sandbox.acreate_sandbox("e2b", api_base=API)
    await sandbox.arun_code("e2b", container, "x = 41")
    again = await sandbox.arun_code("e2b", container, "print(x + 1); 1 / 0")
    assert "42" in again.stdout, again
    assert "ZeroDivisionError" in str(again.error), again
    assert await sandbox.adelete_sandbox("e2b", container, api_base=API)


asyncio.run(main())
