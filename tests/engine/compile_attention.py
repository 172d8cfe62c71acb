"""Compile the attention kernels for a GPU that is not there, and say how much shared memory they take.

    python tests/engine/compile_attention.py CAPABILITY CASE...

A CASE is FORMAT:ROPE:SPARSE:PAIRS:KEYS:WARPS:STAGES (numbers, as the kernel takes them), or "merge". Prints
one JSON object: case to bytes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from glmspark.engine.attention import decode
from glmspark.engine.attention.kernels import attend, merge

ATTEND = {"places": "*i32", "lengths": "*i32", "starts": "*i32", "out": "*fp32", "lse": "*fp32"}
MERGE = {"parts": "*fp32", "part_lses": "*fp32", "starts": "*i32", "out": "*bf16", "lse": "*fp32"}
LATENT = {0: "*bf16", 1: "*fp8e4nv", 2: "*fp8e4nv"}
ROPE = {0: "*bf16", 1: "*fp8e4nv", 2: "*bf16"}
SCALES = {0: "*bf16", 1: "*fp32", 2: "*fp32"}
AT = {0: (512, 0), 1: (512, 0), 2: (264, 128)}


def shared_bytes(
    kernel: Any, capability: int, pointers: dict[str, str], constants: dict[str, Any], options: dict[str, int]
) -> int:
    """Shared memory of one compiled variant."""
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], Any] = {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = pointers.get(name, "fp32" if name == "scale_log2" else "i32")
        # The runtime's own guess for pointers and strides: multiples of 16. A scale's place is not.
        if name not in (
            "scale_log2",
            "heads",
            "rank",
            "world",
            "interleave",
            "count",
            "requests",
        ) and not name.startswith(("scales_", "lse_", "part_lses_")):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    return int(
        compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared
    )


def case_bytes(capability: int, case: str) -> int:
    """Shared memory of a case."""
    if case == "merge":
        constants = {"BY_REQUEST": True, "BLOCK": decode.MERGE_BLOCK, "WIDTH": decode.MERGE_WIDTH}
        return shared_bytes(merge, capability, MERGE, constants, {"num_warps": 4})
    kind, rope, sparse, pairs, keys, warps, stages = map(int, case.split(":"))
    pointers = ATTEND | {"query": "*bf16", "latent": LATENT[kind], "rope": ROPE[kind], "scales": SCALES[kind]}
    rope_at, scales_at = AT[kind]
    constants = {
        "ROPE": rope, "ROPE_AT": rope_at, "SCALES_AT": scales_at, "FORMAT": kind,
        "SPARSE": bool(sparse), "PAGE": 64, "CAUSAL": True,
        "BLOCK_M": pairs, "BLOCK_N": keys,
    }  # fmt: skip
    options = {"num_warps": warps, "num_stages": stages}
    return shared_bytes(attend, capability, pointers, constants, options)


if __name__ == "__main__":
    print(json.dumps({case: case_bytes(int(sys.argv[1]), case) for case in sys.argv[2:]}))
