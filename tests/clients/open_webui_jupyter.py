"""
Open WebUI's own client of Jupyter, as its wheel has it: the folder of its modules, the server and the token are arguments.
Its settings are stood in for: they are of a server with hundreds of packages.
"""

import asyncio
import sys
import types

folder, url, token = sys.argv[1:]
sys.path.insert(0, folder)
settings = types.ModuleType("open_webui.env")
settings.AIOHTTP_CLIENT_ALLOW_REDIRECTS = settings.ENABLE_ORJSON = False
sys.modules["open_webui.env"] = settings
from open_webui.utils.code_interpreter import execute_code_jupyter  # noqa: E402  # behind its settings


def ran(code, timeout=60):
    return asyncio.run(execute_code_jupyter(url, code, token, "", timeout))


assert {"stdout": "hello", "stderr": "", "result": "42"} == ran("print('hello')\n6 * 7"), ran("print('hello')\n6 * 7")
failed = ran("print('é')\n1/0")
assert ("é", "ZeroDivisionError: division by zero") == (failed["stdout"], failed["stderr"].splitlines()[-1]), failed
picture = ran("from IPython.display import Image, display\ndisplay(Image(b'\\x89PNG\\r\\n\\x1a\\n', format='png'))")
assert picture["result"].startswith("data:image/png;base64,iVBORw0KGgo"), picture
assert "NameError" in ran("kept")["stderr"], "each call has a kernel of its own"
late = ran("while True: pass", 1)
assert "Execution timed out." == late["stderr"], late
