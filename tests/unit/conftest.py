"""
What the unit tests share: hypothesis without a deadline for each example, and a daemon's limit on descriptors.

A machine that is busy with something else isn't a bug, and pytest's own timeout ends what hangs. A user's soft limit is
often 1,024 descriptors, of which loops with thousands of runners need more.
"""

from __future__ import annotations

import resource

from hypothesis import settings

settings.register_profile("leeward", deadline=None)
settings.load_profile("leeward")

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
