"""
One worker as the daemon sees it: the zygote that makes its keeper, the keeper's channel, its states and its end.

Runs in:   the daemon, and `leeward run`.
"""
