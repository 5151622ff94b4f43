"""
Open WebUI's own client of Jupyter, as its source archive has it: its file, the server and the token are arguments. Its
settings are stood in for: they are of a server with hundreds of packages.
"""

import asyncio
import importlib.util
import sys
import types

path, url, token = sys.argv[1:]
settings = types.ModuleType("open_webui.env")
settings.AIOHTTP_CLIENT_ALLOW_REDIRECTS = False
sys.modules |= {"open_webui": types.ModuleType("open_webui"), "open_webui.env": settings}
spec = importlib.util.spec_from_file_location("code_interpreter", path)
client = importlib.util.module_from_spec(spec)
spec.loader.exec_module(client)


def ran(code, timeout=60):
    return asyncio.run(client.execute_code_jupyter(url, code, token, "", timeout))


assert {"stdout": "hello", "stderr": "", "result": "42"} == ran("print('hello')\n6 * 7"), ran("print('hello')\n6 * 7")
failed = ran("print('é')\n1/0")
assert ("é", "ZeroDivisionError: division by zero") == (failed["stdout"], failed["stderr"].splitlines()[-1]), failed
picture = ran("from IPython.display import Image, display\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\n', format='png'))")
assert picture["result"].startswith("data:image/png;base64,iVBORw0KGgo"), picture
assert "NameError" in ran("kept")["stderr"], "each call has a kernel of its own"
late = ran("while True: pass", 1)
assert "Execution timed out." == late["stderr"], late
