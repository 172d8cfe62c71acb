"""A deployment's life: started, proven, watched, stopped, and cleaned up after when it was not stopped."""
