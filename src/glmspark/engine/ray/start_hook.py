"""Called by `ray start` (RAY_START_HOOK) with its parameters before it starts anything."""

from __future__ import annotations

from typing import Any


def without_client_server(parameters: Any, _head: bool) -> None:
    """No Ray client server: it runs code for whoever connects to port 10001, and nobody here does."""
    parameters.ray_client_server_port = None
