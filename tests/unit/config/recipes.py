"""A valid recipe as data, for tests to bend."""

from typing import Any


def recipe_data(**sections: Any) -> dict[str, Any]:
    """A small valid recipe; sections replace or, as mappings, extend those of the same name."""
    data: dict[str, Any] = {
        "recipe": 1,
        "name": "toy",
        "model": {"source": "package:toy", "served_name": "toy"},
        "layout": {"tp": 2, "pp": 1},
        "engine": {
            "dtype": "float32",
            "max_model_len": 2048,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 2048,
            "kv_cache_memory": "256MiB",
        },
        "canaries": [{"probe": "answer", "prompt": "2+2=", "expect": "4", "max_tokens": 1}],
    }
    for name, section in sections.items():
        if isinstance(section, dict) and isinstance(data.get(name), dict):
            data[name] = {**data[name], **section}
        else:
            data[name] = section
    return data
