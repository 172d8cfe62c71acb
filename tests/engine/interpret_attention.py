"""The attention kernels on the CPU, by Triton's interpreter, against float64. Prints one JSON object a line.

    python tests/engine/interpret_attention.py

Queries are float32 here: the interpreter knows no product of bfloat16. What the kernels allocate is filled
with NaN first, so that whatever they leave unwritten shows.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported

import torch

from glmspark.engine.attention import decode, reference, self_test, shares
from glmspark.engine.attention.layout import LATENT, Cache, Format, cache_of, pack
from glmspark.engine.attention.shapes import Shape

SCALE = 0.06
PAGE = 16


def cache(kind: Format, rope: int, pages: int) -> Cache:
    """A cache of random tokens whose pages lie apart, as where layers share one block."""
    values = torch.randn(pages, PAGE, LATENT + rope)
    scale = torch.tensor([0.02])
    if kind is Format.PACKED:
        stored = pack(values)
    elif kind is Format.FP8:
        stored = (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    else:
        stored = values.to(torch.bfloat16)
    wide = stored.new_zeros(pages, 2, *stored.shape[1:])
    wide[:, 1] = stored
    return cache_of(wide[:, 1], kind, rope, scale)


def say(case: str, found: decode.Result, right: decode.Result) -> None:
    """How far a result is from the right one; NaN compares as infinitely far."""
    out, lse = (tensor.double() for tensor in found)
    empty = right[1] == float("-inf")
    off = (out - right[0]).norm() / right[0].norm().clamp_min(1e-30)
    lse_off = (lse - right[1])[~empty].abs().max() if (~empty).any() else torch.tensor(0.0)
    row = {
        "case": case,
        "off": float(off.nan_to_num(float("inf"))),
        "lse_off": float(lse_off.nan_to_num(float("inf"))),
        "empty_right": bool((lse[empty] == float("-inf")).all() and (out[empty] == 0).all()),
        "empty": int(empty.sum()),
    }
    print(json.dumps(row), flush=True)


def sparse(kind: Format, rope: int, heads: int, splits: int) -> None:
    """Rows with gaps, with few and with no slots."""
    held, width = cache(kind, rope, 8), 48
    slots = torch.randint(0, 8 * PAGE, (4, width), dtype=torch.int32)
    slots[0, 20:] = -1
    slots[1, ::3] = -1
    slots[2] = -1
    counts = torch.tensor([width, width, width, 5], dtype=torch.int32)
    query = torch.randn(4, heads, LATENT + rope) * 0.3
    looked_at = torch.where(torch.arange(width) < counts[:, None], slots, -1)
    found = decode.sparse(query, held, slots, counts, SCALE, splits=splits)
    say(
        f"sparse {kind.name} rope {rope} heads {heads} splits {splits}",
        found,
        reference.sparse(query, held, looked_at, SCALE),
    )


def dense(kind: Format, rope: int, heads: int, splits: int, world: int, interleave: int = 1) -> None:
    """Three requests of 3, 1 and 0 tokens' rows, shared out over `world` ranks and merged."""
    starts = torch.tensor([0, 3, 4, 4], dtype=torch.int32)
    lengths = torch.tensor([41, 2, 7], dtype=torch.int32)
    query = torch.randn(5, heads, LATENT + rope) * 0.3  # the last row is no request's
    whole = cache(kind, rope, 12)
    table = torch.randperm(12).view(3, 4).to(torch.int32)
    bounds = shares.row_lengths(starts, lengths, 5)
    right = reference.dense(query, whole, table, starts, bounds, SCALE)
    parts = []
    for rank in range(world):
        held = whole if world == 1 else of_rank(whole, table, world, rank, interleave)
        requests = decode.Requests(table, starts, lengths, 3, 64, world, rank, interleave)
        shape = Shape(32, 16, 4, 2)
        parts.append(decode.dense(query, held, requests, SCALE, splits=splits, shape=shape))
    found = parts[0]
    if world > 1:
        outs, lses = (torch.stack([part[n] for part in parts]) for n in (0, 1))
        found = decode.merge_parts(outs, lses, torch.float32)
    say(f"dense {kind.name} rope {rope} heads {heads} splits {splits} of {world} ranks", found, right)


def backend(kind: str, world: int) -> None:
    """vLLM's metadata of two requests of three rows and one of padding, decoded by the class on each rank."""
    from glmspark.engine.attention.backend import DenseMLAImpl

    starts = torch.tensor([0, 3, 6, 6], dtype=torch.int32)
    lengths = torch.tensor([37, 20, 0], dtype=torch.int32)
    query = torch.randn(9, 2, LATENT + 64) * 0.3  # padding has as many rows as every request
    whole = cache(Format.FP8 if kind == "fp8" else Format.PLAIN, 64, 12)
    table = torch.randperm(12).view(3, 4).to(torch.int32)
    bounds = shares.row_lengths(starts, lengths, 9)
    parts = []
    for rank in range(world):
        held = whole if world == 1 else of_rank(whole, table, world, rank, 1)
        impl = object.__new__(DenseMLAImpl)
        impl.kv_cache_dtype, impl.kv_lora_rank, impl.scale = kind, LATENT, SCALE
        impl.dcp_world_size, impl.dcp_rank, impl.interleave = world, rank, 1
        local = shares.local_lengths(lengths, world, rank)
        decoding = SimpleNamespace(
            block_table=table,
            seq_lens=local if world > 1 else lengths,
            dcp_tot_seq_lens=lengths if world > 1 else None,
        )
        step = SimpleNamespace(
            decode=decoding, query_start_loc=starts, max_seq_len=-(-37 // world), causal=True
        )
        layer = SimpleNamespace(_k_scale=torch.tensor(0.02))
        halves = (query[..., :LATENT], query[..., LATENT:])
        parts.append(impl.forward_mqa(halves if rank % 2 == 0 else query, held.latent, step, layer))
    found = parts[0]
    if world > 1:
        outs, lses = (torch.stack([part[n] for part in parts]) for n in (0, 1))
        found = decode.merge_parts(outs, lses, torch.float32)
    say(
        f"backend {kind} of {world} ranks", found, reference.dense(query, whole, table, starts, bounds, SCALE)
    )


def sparse_backend(kind: str, world: int) -> None:
    """Two requests' rows with chosen places of the whole sequence, decoded by the class on each rank.

    How places become slots is upstream's (a kernel of its own); here it is done as its docstring says.
    """
    from glmspark.engine.attention import sparse_backend as ours

    def slots_of(requests, table, places, *, dcp_size, dcp_rank, **_more):  # type: ignore[no-untyped-def]
        found = torch.full_like(places, -1)
        counts = torch.zeros(len(places), dtype=torch.int32)
        for row, chosen in enumerate(places.tolist()):
            mine = [place // dcp_size for place in chosen if place >= 0 and place % dcp_size == dcp_rank]
            slots = [int(table[requests[row], place // PAGE]) * 2 * PAGE + place % PAGE for place in mine]
            found[row, : len(slots)] = torch.tensor(slots, dtype=torch.int32)
            counts[row] = len(slots)
        return found, counts

    ours.triton_filter_and_convert_dcp_index = slots_of
    table = torch.randperm(8).view(2, 4).to(torch.int32)
    whole = cache(Format.PACKED if kind == "fp8_ds_mla" else Format.PLAIN, 64, 8)
    query = torch.randn(3, 8, LATENT + 64) * 0.3
    chosen = torch.stack([torch.randperm(60)[:40] for _ in range(3)]).to(torch.int32)
    chosen[1, 7:], chosen[2, :] = -1, -1
    belongs = torch.tensor([0, 1, 1])
    pages = table[belongs[:, None], (chosen // PAGE).clamp_min(0)] * PAGE + chosen % PAGE
    right = reference.sparse(query, whole, torch.where(chosen < 0, -1, pages), SCALE)
    parts = []
    for rank in range(world):
        held = whole if world == 1 else of_rank(whole, table, world, rank, 1)
        impl = object.__new__(ours.SparseMLAImpl)
        impl.kv_cache_dtype, impl.kv_lora_rank, impl.scale = kind, LATENT, SCALE
        impl.dcp_world_size, impl.dcp_rank, impl.need_to_return_lse_for_decode = world, rank, True
        impl.topk_indices_buffer = torch.cat([chosen, torch.full((2, 40), 9, dtype=torch.int32)])
        step = SimpleNamespace(
            req_id_per_token=belongs, block_table=table, block_size=PAGE, cp_kv_cache_interleave_size=1
        )
        stored = held.scales.view(torch.uint8) if kind == "fp8_ds_mla" else held.latent
        apart = stored.new_zeros(8, 2, *stored.shape[1:])  # another layer's block lies between
        apart[:, 0] = stored
        parts.append(impl.forward_mqa((query[..., :LATENT], query[..., LATENT:]), apart[:, 0], step, None))
    found = parts[0]
    if world > 1:
        outs, lses = (torch.stack([part[n] for part in parts]) for n in (0, 1))
        found = decode.merge_parts(outs, lses, torch.float32)
    say(f"sparse backend {kind} of {world} ranks", found, right)


def of_rank(whole: Cache, table: torch.Tensor, world: int, rank: int, interleave: int) -> Cache:
    """What one rank keeps of a cache: its tokens in order, in the same pages; the rest is poison."""
    mine = whole.latent.new_zeros(whole.latent.shape).fill_(float("nan"))
    for pages in table.long():
        places = torch.arange(len(pages) * PAGE)
        chosen = places[places // interleave % world == rank]
        kept = torch.arange(len(chosen))
        mine[pages[kept // PAGE], kept % PAGE] = whole.latent[pages[chosen // PAGE], chosen % PAGE]
    return cache_of(mine, whole.format, whole.rope_width)


def main() -> None:
    """Every case."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # which fills what is allocated with NaN
    for kind, rope, heads, splits in [
        (Format.PLAIN, 64, 8, 1), (Format.PLAIN, 0, 4, 3), (Format.FP8, 64, 4, 2), (Format.PACKED, 64, 8, 1),
        (Format.PACKED, 64, 18, 1), (Format.PACKED, 0, 4, 2),
    ]:  # fmt: skip
        sparse(kind, rope, heads, splits)
    for kind, rope, heads, splits, world, interleave in [
        (Format.FP8, 64, 4, 3, 1, 1), (Format.PACKED, 64, 12, 1, 1, 1), (Format.PLAIN, 64, 4, 2, 2, 1),
        (Format.PLAIN, 0, 2, 1, 4, 1), (Format.PLAIN, 64, 4, 1, 2, 4),
    ]:  # fmt: skip
        dense(kind, rope, heads, splits, world, interleave)
    backend("fp8", 1)
    backend("auto", 2)
    sparse_backend("fp8_ds_mla", 1)
    sparse_backend("auto", 2)
    wanted = self_test.Wanted(Format.PACKED, 8, 64, 1, 1, torch.float32)
    out, lse = self_test.sparse_differences(wanted, torch.device("cpu"), count=40)
    print(
        json.dumps({"case": "sparse self-test", "off": out, "lse_off": lse, "empty_right": True, "empty": 8})
    )
    for kind, world, rank in [(Format.PLAIN, 1, 0), (Format.FP8, 2, 1)]:
        wanted = self_test.Wanted(kind, 2, 64, 3, PAGE, torch.float32, world, rank)
        out, lse = self_test.differences(wanted, torch.device("cpu"), longest=60)
        row = {"case": f"self-test {kind.name}", "off": out, "lse_off": lse, "empty_right": True, "empty": 8}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
