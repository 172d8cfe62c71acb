"""What runs inside vLLM: the plugin, its patches and the server entry. Imports nothing else of glmspark."""
