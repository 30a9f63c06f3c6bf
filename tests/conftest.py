"""Property tests have no deadline: how long an example takes tells of the machine, not of the code."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
