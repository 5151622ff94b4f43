"""
What the asyncio client waits by: waiting.py has the same names for the blocking client.

Runs in:   anybody's program, in one event loop.
"""

from asyncio import Lock as Lock
from asyncio import shield as shield
from asyncio import sleep as sleep
from asyncio import to_thread as in_thread

__all__ = ["Lock", "in_thread", "shield", "sleep"]
