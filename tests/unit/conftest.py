"""Settings for all unit tests."""

from hypothesis import settings

# A busy machine is slow now and then; pytest-timeout catches what hangs. Examples are drawn anew in every
# run: few in each are many over time. `make unit ARGS="--hypothesis-profile long"` draws many at once.
settings.register_profile("unit", deadline=None, max_examples=40)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile("unit")
