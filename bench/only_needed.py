"""A 30 GB checkpoint of headers and holes onto three nodes of a lab, each its own stage's part.

    python bench/only_needed.py CLUSTER.YAML

It lies on a hub of this machine. Prints one line of JSON: what each node then has on its disk, and of how
much. Exit code 1 where a node has more than 40 %, or what it has is not verified.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from glmspark.config import recipe_path
from glmspark.config.cluster import load_cluster
from tests.unit.weights.hub import REPOSITORY, serving
from tools.headers import write

BAR = 0.4
GLMSPARK = [sys.executable, "-m", "glmspark"]


def ask(*words: str) -> dict[str, Any]:
    """What glmspark prints as JSON."""
    done = subprocess.run([*GLMSPARK, *words, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    if done.returncode:
        raise SystemExit(done.stdout)
    return found


def main() -> int:
    cluster = load_cluster(sys.argv[1])
    names = ",".join(node.name for node in cluster.nodes[:3])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((cluster.nodes[0].address, 9))
        mine = str(probe.getsockname()[0])
    with tempfile.TemporaryDirectory() as folder:
        whole = write("glm-5.2-reap-7-layers", Path(folder) / "whole", shard_bytes=1_000_000_000)
        size = sum(one.stat().st_size for one in whole.glob("*.safetensors"))
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(
            recipe_path("glm-tiny").read_text().replace("package:glm-tiny", f"hf:{REPOSITORY}@main")
        )
        where = [str(recipe), "--cluster", sys.argv[1]]
        with serving(whole, mine) as hub:
            os.environ["HF_ENDPOINT"] = hub.url
            begun = time.monotonic()
            # This hub states no hashes of files that it would have to hash first.
            ask("fetch", *where, "--anyway", "--only-needed", "--tp", "1", "--pp", "3", "--nodes", names)
            seconds = time.monotonic() - begun
        model = f"{REPOSITORY.replace('/', '--')}@main"
        stored = {
            node: models[model]["nbytes"]
            for node, models in ask("models", "list", "--cluster", sys.argv[1]).items()
            if model in models
        }
    (verified,) = ask("verify", *where).values()
    good = [one["good"] for one in verified if one["node"] in stored]
    subprocess.run([*GLMSPARK, "models", "rm", model, "--cluster", sys.argv[1], "--yes"], check=True)
    found: dict[str, Any] = {"bytes": size, "stored": stored, "seconds": round(seconds, 1), "verified": good}
    found["shares"] = {node: round(one / size, 3) for node, one in stored.items()}
    print(json.dumps(found))
    return int(max(found["shares"].values()) > BAR or not all(good) or len(stored) != 3)


if __name__ == "__main__":
    sys.exit(main())
