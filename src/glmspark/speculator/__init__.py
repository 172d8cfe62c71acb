"""Drafters: captured from a target, trained, judged and written in the format that vLLM loads."""
