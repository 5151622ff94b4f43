"""
`leeward bench`: the cost of a job on this machine, compared with lower bounds and alternatives.

Runs in:   the CLI, which is the client that is measured.

    figures       percentiles, ratios, noise; pure
    machine       a description of the machine, and the load of other processes meanwhile
    floors        ping-pong and process starts without leeward, each a `Subject`
    floors.c      the hops in C, and a bare supervisor; compiled.py compiles it
    peers         the processes at the other end of the floors
    alternatives  other ways to run code, if they are installed
    ours          leeward itself: a daemon for the bench, one connection, 8 callers
    native        leeward called from C
    spent         the processor time of leeward's processes
    rounds        the interleaved run
    report, plot  the findings as text, and as a picture
    table         the figures to reach, one module for each group
"""
