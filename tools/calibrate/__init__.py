"""Fit the speed model's constants to published measurements, and say how far it is off."""
