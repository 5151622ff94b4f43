"""
What the egress broker decides by, and how it reads what jobs send: names, addresses, queries, client hellos, heads.

Runs in:   the broker, a process of its own without privileges; `leeward egress test` uses the same functions.
           Bytes in, values out: nothing here but `fetch` opens a descriptor or looks at a clock.
"""
