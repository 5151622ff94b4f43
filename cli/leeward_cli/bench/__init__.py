"""
`leeward bench`: the cost of a job on this machine, compared with lower bounds and alternatives.

Runs in:   the CLI, which is the client that is measured.
"""
