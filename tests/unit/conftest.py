"""Settings for all unit tests."""

from hypothesis import settings

# A busy machine is slow now and then; pytest-timeout catches what hangs.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
