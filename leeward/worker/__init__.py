"""
The daemon's side of zygote, keepers and runners: their channels, states and ends.
"""
