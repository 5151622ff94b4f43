# The compiled shim. What is in it stands in *.cdef.h; the modules beside this file give it types.
from typing import Any

ffi: Any
lib: Any
