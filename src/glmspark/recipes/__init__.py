"""The recipes that come with glmspark, and the checkpoint of glm-tiny."""
