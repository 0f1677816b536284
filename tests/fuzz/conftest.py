"""The property tests draw the same loops in every run: a failure is a change of the code, never of the day."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "loops", derandomize=True, deadline=None, max_examples=200, suppress_health_check=list(HealthCheck), database=None
)
