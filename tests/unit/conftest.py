"""
What the unit tests share: hypothesis without a deadline for each example.

A machine that is busy with something else isn't a bug, and pytest's own timeout ends what hangs.
"""

from hypothesis import settings

settings.register_profile("leeward", deadline=None)
settings.load_profile("leeward")
