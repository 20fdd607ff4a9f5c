"""Property tests have no deadline: how fast an example runs depends on who else is using the machine."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
