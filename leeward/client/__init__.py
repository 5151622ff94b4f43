"""
The Python clients, blocking and asyncio, and what they share.

Runs in:   a client's process.
"""
