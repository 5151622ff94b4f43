"""
The egress broker: its policies, and how it reads the bytes of jobs: names, addresses, queries, client hellos, heads.

Runs in:   the broker, a process of its own without privileges; `leeward egress test` uses the same functions.
           Bytes in, values out: nothing here but `fetch` opens a descriptor or looks at a clock.
"""
