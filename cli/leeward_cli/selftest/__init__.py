"""
`leeward selftest`: the harmless part of the attack catalogue, tried on this host's own sandbox.

Runs in:   the CLI. `attacks_*` are tables of short programs that run as jobs; `canaries` is what they are after,
           outside; `trial` sends them and judges what came of each; `report` shows it.
Trust:     what a job says is the least of it: a row's attack has succeeded if a canary outside tells so, or if the
           job brought back what only success can tell. A program that fails otherwise than by a refusal counts as not
           tried, never as held.
"""
