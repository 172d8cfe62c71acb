"""What is known of the recipe formats v1 and v2: their keys, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping

# Keys that would run something: never taken over, and not kept as if they might.
HOOKS = ("mods", "pre_exec", "post_exec", "post_commands", "stop_after_post")
V1_KEYS = {
    "recipe_version",
    "name",
    "container",
    "command",
    "model",
    "description",
    "defaults",
    "env",
    "mods",
}
V1_KEYS |= {"build_args", "cluster_only", "solo_only"}
DTYPES = ("auto", "float32", "bfloat16", "float16")
MEANT: Mapping[str, str] = {
    "container": "give it to cluster.yaml as runtime.image",
    "containers": "give one image for all nodes to cluster.yaml as runtime.image",
    "min_nodes": "the plan says how many nodes are needed: tp × pp",
    "max_nodes": "the plan says how many nodes are needed: tp × pp",
    "include": "write the included values into the file first",
    "overrides": "write one recipe for each case",
}
CANARIES = (
    {"probe": "ranks"},
    {
        "probe": "answer",
        "name": "sum",
        "prompt": "What is 2+2? Answer with the number alone.",
        "expect": r"(?i)^\W*(4|four)\W*$",
    },
    {"probe": "streaming", "prompt": "Count from 1 to 5, numbers alone.", "expect": r"1\W+2\W+3\W+4\W+5"},
)
