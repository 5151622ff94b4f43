"""
What programs on the host obey: the files of a folder that git, editors, shells, agents and build tools run or take
settings from.

Runs in:   anywhere; pure. Whoever searches a folder passes in a function that lists it.
Used by:   agents (what an agent has changed is named at its end), the prefix for agents outside, `leeward mcp` and
           WorkdirSandbox (what runs at once can't be written), live sync and approvals (a person is asked).
"""
