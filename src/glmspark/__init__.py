"""glmspark: one GLM endpoint from one to eight DGX Sparks, or from this machine."""

__version__ = "0.1.0"
