"""Weights: looked into where they lie, fetched once, passed on to every node, verified."""
