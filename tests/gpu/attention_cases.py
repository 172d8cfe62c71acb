"""What tests/gpu/attention_cuda.py runs: random caches, rows and ranks, and the clocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from glmspark.engine.attention import decode, reference, shares
from glmspark.engine.attention.layout import LATENT, Cache, Format, cache_of, pack

PAGE = 64
TOP_K = 2048
DEVICE = torch.device("cuda")
KINDS = [
    *((False, kind, rope) for kind, rope in [
        (Format.PLAIN, 64), (Format.PLAIN, 0), (Format.FP8, 64), (Format.PACKED, 64)]),
    *((True, kind, rope) for kind, rope in [
        (Format.PLAIN, 64), (Format.PLAIN, 0), (Format.FP8, 64), (Format.PACKED, 64), (Format.PACKED, 0)]),
]  # fmt: skip
"""(sparse, format, rotary values) of what is tested."""


def scale_of(rope: int) -> float:
    """GLM-5.2's softmax scale: of its 192 + 64 values a head before absorption."""
    return (192 + rope) ** -0.5


def make_cache(kind: Format, rope: int, tokens: int, layers: int = 1) -> list[Cache]:
    """Random caches of so many tokens; `layers` of them, so that repeated calls find a cold L2."""
    pages, found = -(-tokens // PAGE), []
    scale = torch.tensor([0.02], device=DEVICE)
    for _ in range(layers):
        values = torch.empty(pages, PAGE, LATENT + rope, dtype=torch.bfloat16, device=DEVICE).normal_()
        if kind is Format.PACKED:
            stored = torch.cat([pack(part) for part in values.split(4096)])
        elif kind is Format.FP8:
            stored = (values.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        else:
            stored = values
        found.append(cache_of(stored, kind, rope, scale))
    return found


def queries(rows: int, heads: int, rope: int) -> torch.Tensor:
    """Random query rows, bfloat16, of the size that real scores have."""
    return torch.empty(rows, heads, LATENT + rope, dtype=torch.bfloat16, device=DEVICE).normal_() * 0.3


def pages_of(requests: int, tokens: int) -> torch.Tensor:
    """A block table over shuffled pages: int32 [requests, pages]."""
    each = -(-tokens // PAGE)
    return torch.randperm(requests * each, device=DEVICE).view(requests, each).to(torch.int32)


def of_rank(whole: Cache, table: torch.Tensor, tokens: int, world: int, rank: int) -> Cache:
    """What one rank of `world` keeps of a cache; the rest is poison (NaN in every format that knows one)."""
    raw = whole.scales if whole.format is Format.PACKED else whole.latent
    raw = raw.view(torch.uint8)
    mine = torch.full_like(raw, 0xFF)
    for pages in table.long():
        chosen = torch.arange(rank, tokens, world, device=DEVICE)
        kept = torch.arange(len(chosen), device=DEVICE)
        mine[pages[kept // PAGE], kept % PAGE] = raw[pages[chosen // PAGE], chosen % PAGE]
    stored = mine if whole.format is Format.PACKED else mine.view(whole.latent.dtype)
    return cache_of(stored, whole.format, whole.rope_width, whole.scales.reshape(-1)[:1])


@dataclass
class Errors:
    """The largest of each over all cases."""

    cases: int = 0
    out: float = 0.0
    lse: float = 0.0
    bad: list[str] | None = None

    def add(self, name: str, found: decode.Result, right: decode.Result) -> None:
        """Compare: norm of the difference row by row, and every LSE."""
        out, lse = (tensor.double() for tensor in found)
        empty = right[1] == float("-inf")
        norms = right[0].norm(dim=-1).clamp_min(1e-3)
        off = ((out - right[0]).norm(dim=-1) / norms).max()
        lse_off = torch.where(empty, torch.zeros_like(lse), (lse - right[1]).abs()).max()
        off, lse_off = (float(value.nan_to_num(float("inf"))) for value in (off, lse_off))
        fine = bool((lse[empty] == float("-inf")).all() and (out[empty] == 0).all())
        self.cases += 1
        self.out, self.lse = max(self.out, off), max(self.lse, lse_off)
        if off > 1e-2 or lse_off > 1e-3 or not fine:
            self.bad = [*(self.bad or []), f"{name}: out {off:.2e}, lse {lse_off:.2e}, empty rows {fine}"]


def dense_accuracy() -> Errors:
    """Contexts from 1 to 1M, ragged batches, 1-8 rows, 8-64 heads, 1-8 ranks, each format."""
    errors = Errors()
    for kind, rope in [(kind, rope) for is_sparse, kind, rope in KINDS if not is_sparse]:
        for longest, rows, heads, world in [
            (1, 1, 8, 1), (2, 4, 16, 2), (63, 1, 64, 1), (65, 8, 16, 8), (130, 3, 32, 4), (1000, 2, 20, 1),
            (4097, 8, 64, 2), (8192, 1, 16, 4), (65_537, 4, 16, 1), (65_537, 2, 64, 8),
        ]:  # fmt: skip
            lengths = torch.tensor([longest, max(1, longest // 3), max(1, longest // 7)], device=DEVICE)
            counts = [rows, 1, max(1, rows // 2)]
            dense_case(errors, kind, rope, lengths, counts, heads, world)
    for world, rows, heads in [(1, 1, 16), (4, 8, 16)]:
        dense_case(errors, Format.PACKED, 64, torch.tensor([1_048_576], device=DEVICE), [rows], heads, world)
    return errors


def dense_case(
    errors: Errors, kind: Format, rope: int, lengths: torch.Tensor, counts: list[int], heads: int, world: int
) -> None:
    """One ragged batch; its last row belongs to no request."""
    longest, scale = int(lengths.max()), scale_of(rope)
    lengths = lengths.to(torch.int32)
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)
    rows = int(starts[-1]) + 1
    query, table = queries(rows, heads, rope), pages_of(len(counts), longest)
    (whole,) = make_cache(kind, rope, table.numel() * PAGE)
    bounds = shares.row_lengths(starts, lengths, rows)
    right = reference.dense(query, whole, table, starts, bounds, scale)
    parts = []
    for rank in range(world):
        mine = whole if world == 1 else of_rank(whole, table, longest, world, rank)
        requests = decode.Requests(table, starts, lengths, max(counts), -(-longest // world), world, rank)
        parts.append(decode.dense(query, mine, requests, scale))
    found = parts[0]
    if world > 1:
        stacked = [torch.stack([part[n] for part in parts]) for n in (0, 1)]
        found = decode.merge_parts(stacked[0], stacked[1], torch.bfloat16)
    errors.add(f"dense {kind.name} {rope} {longest} x{counts} heads {heads} ranks {world}", found, right)


def sparse_accuracy() -> Errors:
    """Lists with gaps, short and empty ones, 8-64 heads, each format; sparse over all against dense."""
    errors = Errors()
    for kind, rope in [(kind, rope) for is_sparse, kind, rope in KINDS if is_sparse]:
        for rows, heads, width, tokens in [
            (1, 8, 16, 64), (3, 16, 100, 1000), (8, 32, 2048, 70_000), (17, 64, 2048, 9000),
            (2, 20, 2048, 1_048_576),
        ]:  # fmt: skip
            (held,) = make_cache(kind, rope, tokens)
            query = queries(rows, heads, rope)
            slots = torch.randint(0, tokens, (rows, width), dtype=torch.int32, device=DEVICE)
            slots[torch.rand(rows, width, device=DEVICE) < 0.3] = -1
            slots[-1] = -1
            counts = torch.full((rows,), width, dtype=torch.int32, device=DEVICE)
            counts[0] = width // 2
            seen = torch.where(torch.arange(width, device=DEVICE) < counts[:, None], slots, -1)
            found = decode.sparse(query, held, slots, counts, scale_of(rope))
            right = reference.sparse(query, held, seen, scale_of(rope))
            errors.add(f"sparse {kind.name} {rope} rows {rows} heads {heads} of {width}", found, right)
    for context in (1, 77, 2048):
        (held,) = make_cache(Format.PACKED, 64, context)
        query, table = queries(1, 64, 64), pages_of(1, context)
        places = torch.arange(context, device=DEVICE)
        slots = (table[0, places // PAGE] * PAGE + places % PAGE).to(torch.int32)[None]
        length = torch.tensor([context], dtype=torch.int32, device=DEVICE)
        starts = torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
        whole = decode.dense(query, held, decode.Requests(table, starts, length, 1, context), scale_of(64))
        found = decode.sparse(query, held, slots, length, scale_of(64))
        errors.add(f"sparse over all {context}", found, (whole[0].double(), whole[1].double()))
    return errors


# --- speed --------------------------------------------------------------------------------------------------


def microseconds(call: Callable[[int], Any], variants: int, rounds: int = 4) -> float:
    """Time of one call, the best of the rounds, in a CUDA graph that calls every variant in turn."""

    def took(run: Callable[[], Any]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000

    call(0)
    torch.cuda.synchronize()
    calls = min(16, max(variants, int(20_000 / took(lambda: call(0)))))
    calls -= calls % variants
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(calls):
            call(number % variants)
    graph.replay()
    return min(took(graph.replay) for _ in range(rounds)) / calls


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.zeros(2 * 2**30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.numel() / (microseconds(lambda _: target.copy_(source), 1) * 1e-6)


@functools.cache
def flash_mla() -> tuple[Any, Any] | None:
    """vLLM's FlashMLA, (call, metadata), where this device has it."""
    from vllm.v1.attention.ops import flashmla

    if not flashmla.is_flashmla_sparse_supported()[0]:
        return None
    return flashmla.flash_mla_with_kvcache, flashmla.get_mla_metadata


def flash_sparse(query: torch.Tensor, held: list[Cache], slots: torch.Tensor) -> Callable[[int], Any] | None:
    """FlashMLA's sparse decode of the same rows, as vLLM calls it: 64 heads at least, one row a request."""
    found = flash_mla()
    if found is None:
        return None
    run, metadata = found
    rows, heads, width = query.shape
    padded = query.new_zeros(rows, 1, max(heads, 64), width)
    padded[:, 0, :heads] = query
    plan, _ = metadata()
    table = torch.zeros(rows, 1, dtype=torch.int32, device=DEVICE)
    lengths = torch.full((rows,), held[0].scales.shape[0] * PAGE, dtype=torch.int32, device=DEVICE)

    def call(number: int) -> Any:
        return run(
            q=padded, k_cache=held[number].scales.view(torch.uint8).unsqueeze(-2), block_table=table,
            head_dim_v=LATENT, cache_seqlens=lengths, tile_scheduler_metadata=plan, is_fp8_kvcache=True,
            indices=slots[:, None], softmax_scale=scale_of(64),
        )  # fmt: skip

    return call


def stock_dense(
    query: torch.Tensor, held: list[Cache], table: torch.Tensor, longest: int
) -> Callable[[int], Any]:
    """vLLM's TRITON_MLA decode of one row a request, as its forward_mqa calls it."""
    from vllm.v1.attention.backends.mla.triton_mla import _compute_num_kv_splits
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    rows, heads, _ = query.shape
    units, _ = decode.device_limits(query.device)
    splits = _compute_num_kv_splits(longest, units)
    out = query.new_zeros(rows, heads, LATENT)
    lse = query.new_zeros(rows, heads)
    scratch = torch.empty(rows, heads, splits, LATENT + 1, dtype=torch.float32, device=DEVICE)
    lengths = torch.full((rows,), longest, dtype=torch.int32, device=DEVICE)
    one = torch.ones(1, device=DEVICE)

    def call(number: int) -> Any:
        keys = held[number].latent.unsqueeze(2)
        scale = held[number].scales if held[number].format is Format.FP8 else one
        decode_attention_fwd(
            query, keys, keys[..., :LATENT], out, lse, table, lengths, scratch, splits, scale_of(64), PAGE,
            k_scale=scale, v_scale=scale, is_mla=True,
        )  # fmt: skip
        return out, lse

    return call
