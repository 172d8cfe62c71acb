"""The patches, one file each. `glmspark.engine.registry` lists them in the order they are applied."""
