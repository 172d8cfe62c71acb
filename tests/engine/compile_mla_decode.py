"""Compile vLLM's MLA decode kernel for a GPU that is not there, and say how much shared memory it takes.

    python tests/engine/compile_mla_decode.py FILE CAPABILITY CASE...

FILE is vLLM's triton_decode_attention.py, of which nothing but the kernel's own text is run (the module would
import vLLM and look for a device). A CASE is KV:BLOCK_N:STAGES. Prints one JSON object: case to bytes.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

KERNEL = "_fwd_grouped_kernel_stage1"
HELPERS = ("tanh",)

# As _decode_grouped_att_m_fwd launches it for MLA: 512 + 64 elements a token, 16 heads a block.
CONSTANTS = {
    "kv_group_num": 16, "q_head_num": 16, "BLOCK_DMODEL": 512, "BLOCK_DPE": 64, "BLOCK_DV": 512,
    "BLOCK_H": 16, "NUM_KV_SPLITS": 8, "PAGE_SIZE": 64, "logit_cap": 0.0, "Lk": 576, "Lv": 512,
    "IS_MLA": True,
}  # fmt: skip
POINTERS = {"Q": "*bf16", "Req_to_tokens": "*i32", "B_Seqlen": "*i32", "Att_Out": "*fp32"}
POINTERS |= {"k_scale": "*fp32", "v_scale": "*fp32"}
KV = {"bf16": "*bf16", "fp8": "*fp8e4nv"}


def kernel_module(file: Path, folder: Path) -> ModuleType:
    """A module with the kernel and what it calls, cut out of vLLM's file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    wanted = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in (KERNEL, *HELPERS)
    ]
    text = (
        "import triton\nimport triton.language as tl\n\n\n" + "\n\n\n".join(map(ast.unparse, wanted)) + "\n"
    )
    (folder / "mla_decode_kernel.py").write_text(text)
    spec = importlib.util.spec_from_file_location("mla_decode_kernel", folder / "mla_decode_kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shared_bytes(kernel: object, capability: int, kv: str, block: int, stages: int) -> int:
    """Shared memory of one compiled variant."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    names = kernel.arg_names  # type: ignore[attr-defined]
    constants = {**CONSTANTS, "BLOCK_N": block}
    pointers = {**POINTERS, "K_Buffer": KV[kv], "V_Buffer": KV[kv]}
    signature, attributes = {}, {}
    for place, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        signature[name] = pointers.get(name) or ("fp32" if name == "sm_scale" else "i32")
        # The runtime's own guess for pointers and strides: multiples of 16.
        if name not in ("sm_scale", "stride_mid_os"):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    options = {"num_warps": 4, "num_stages": stages}
    compiled = compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=options)
    return int(compiled.metadata.shared)


def main(file: str, capability: str, *cases: str) -> None:
    """Compile every case and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = getattr(kernel_module(Path(file), Path(folder)), KERNEL)
        found = {}
        for case in cases:
            kv, block, stages = case.split(":")
            found[case] = shared_bytes(kernel, int(capability), kv, int(block), int(stages))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
