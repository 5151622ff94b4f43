"""
The egress broker: its policies, and how it reads the bytes of jobs: names, addresses, queries, client hellos, heads.

Runs in:   the broker, a process of its own without privileges; `leeward egress test` uses the same functions.
           Modules that say "pure" take bytes and return values; the others have the sockets, the clock and the loop.
"""
