"""The shim: system calls and loops in C, and their Python names. The only place with foreign functions."""
