"""
`leeward selftest`: tries the harmless part of the attack catalogue on this host's sandbox.

Runs in:   the CLI. `attacks` are tables of short programs that run as jobs; `canaries` makes their targets outside of
           the sandbox; `trial` runs the programs, judges and shows the results.

Trust:     little in what a job reports: an attack has succeeded if a canary outside shows it, or if the job returns
           something that only a successful attack can know. A program that fails in another way than by a refusal
           counts as untried, never as held.
"""
