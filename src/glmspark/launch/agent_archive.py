"""The agent as one file, and the script that says where it keeps deployments on a node."""

from __future__ import annotations

from glmspark.launch import node_agent
from glmspark.nodes.archives import Archive

AGENT = Archive("agent", node_agent, "__main__", {"ok": False})

DIRECTORY = "ranks"
"""Of deployments on nodes and of the agent, below the state directory there."""

WHERE = """printf '%s\\n' "${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}/ranks" """
