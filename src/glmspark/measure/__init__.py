"""Measuring an endpoint: how fast it is, how sure that is, and whether its answers are right."""
