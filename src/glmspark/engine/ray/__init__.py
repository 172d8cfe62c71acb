"""Ray as the executor: one process a node that starts Ray there, keeps it, and ends all of it."""
