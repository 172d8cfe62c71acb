"""The parts of DCP on the CPU, all ranks in one process: slots, partial attention, and its combination."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.engine import cpu_context_parallel as parts
from glmspark.engine.patch import Target
from glmspark.engine.patches import dcp_query

RANK, ROPE, HEADS, BLOCK = 16, 8, 4, 16


@settings(max_examples=60, deadline=None)
@given(
    world=st.integers(1, 4),
    interleave=st.sampled_from([1, 2, 4, 16]),
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=4),
)
def test_every_token_has_one_slot_on_one_rank(world: int, interleave: int, lengths: list[int]) -> None:
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    per_request = -(-max(lengths) // (BLOCK * world))
    table = torch.randperm(len(lengths) * per_request).view(len(lengths), per_request).int()
    number = int(starts[-1])
    taken: set[tuple[int, int]] = set()
    owners = torch.zeros(number, dtype=torch.long)
    for rank in range(world):
        slots = torch.full((number + 5,), 77)
        parts.slot_mapping(
            number, number + 5, starts, positions, table, per_request, slots, BLOCK, world, rank, interleave
        )
        assert slots[number:].tolist() == [-1] * 5
        mine = (slots[:number] >= 0).nonzero()[:, 0].tolist()
        owners[mine] += 1
        for token in mine:
            slot = (rank, int(slots[token]))
            assert slot not in taken
            taken.add(slot)
            request = int((starts[1:] <= token).sum())
            block = int(table[request, int(positions[token]) // (BLOCK * world)])
            assert slot[1] // BLOCK == block
            assert int(positions[token]) // interleave % world == rank
        # A request's local tokens fill its blocks from the start, in order: decode reads them so.
        for request, length in enumerate(lengths):
            local = [t for t in mine if starts[request] <= t < starts[request + 1]]
            filled = [int(slots[t]) for t in local]
            wanted = [int(table[request, i // BLOCK]) * BLOCK + i % BLOCK for i in range(len(local))]
            assert filled == wanted, length
    assert (owners == 1).all()


def attention(world: int, lengths: list[int], dtype: torch.dtype) -> tuple[list, torch.Tensor, torch.Tensor]:
    """Each rank's (output, LSE), the local lengths [ranks, requests], and attention to all tokens at once."""
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(len(lengths), HEADS, RANK + ROPE, generator=generator).to(dtype)
    kept = [torch.randn(length, RANK + ROPE, generator=generator).to(dtype) for length in lengths]
    whole = torch.stack(
        [
            torch.softmax(q.float() @ kv.float().T * 0.3, -1) @ kv[:, :RANK].float()
            for q, kv in zip(query, kept, strict=True)
        ]
    )
    results, local = [], torch.zeros(world, len(lengths), dtype=torch.int32)
    for rank in range(world):
        blocks = -(-max(lengths) // BLOCK)
        cache = torch.randn(len(lengths) * blocks, BLOCK, RANK + ROPE).to(dtype)
        table = torch.arange(len(lengths) * blocks).view(len(lengths), blocks)
        for request, kv in enumerate(kept):
            mine = kv[rank::world]
            local[rank, request] = len(mine)
            cache[table[request]] = torch.cat([mine, cache[table[request]].flatten(0, 1)[len(mine) :]]).view(
                blocks, BLOCK, -1
            )
        backend = parts.ContextParallelMLAImpl.__new__(parts.ContextParallelMLAImpl)
        backend.scale, backend.kv_lora_rank = 0.3, RANK
        metadata = SimpleNamespace(decode=SimpleNamespace(block_table=table, seq_lens=local[rank]))
        halves = (query[..., :RANK], query[..., RANK:])
        results.append(backend.forward_mqa(halves, cache, metadata, None))
    return results, local, whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[1], [2, 1, 90], [31, 64]])
@pytest.mark.parametrize("world", [2, 4])
def test_combined_parts_are_the_whole(world: int, lengths: list[int], dtype: torch.dtype) -> None:
    """By either way, and where a rank has no token of a request."""
    results, local, whole = attention(world, lengths, dtype)
    near = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.03}

    lses = torch.stack([lse for _, lse in results])
    shares = [parts.correct_attn_out(out, lses, rank)[0].float() for rank, (out, _) in enumerate(results)]
    torch.testing.assert_close(torch.stack(shares).sum(0), whole, **near)

    places = 1 if dtype == torch.float32 else 2
    each = HEADS // world
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
    sent = []
    for rank, (out, lse) in enumerate(results):
        buffer = torch.full((world, len(lengths), each, RANK + places), 9.0, dtype=dtype)
        parts.pack_send(out, lse, buffer, world, each, RANK, places, local[rank], starts)
        sent.append(buffer)
    for rank in range(world):
        received = torch.stack([buffer[rank] for buffer in sent])
        combined, lse = parts.unpack_combine(received, RANK, places, True, True)
        heads = slice(rank * each, (rank + 1) * each)
        torch.testing.assert_close(combined.float(), whole[:, heads], **near)
        torch.testing.assert_close(lse, torch.logsumexp(lses[..., heads], 0), atol=1e-5, rtol=1e-5)
        assert torch.equal(parts.unpack_combine(received, RANK, places, False, True), combined)


def test_a_token_that_nobody_has_is_zero() -> None:
    lses = torch.full((2, 1, HEADS), parts.NOTHING)
    out, lse = parts.correct_attn_out(torch.zeros(1, HEADS, RANK), lses, 0)
    assert not out.isnan().any()
    assert (lse == parts.NOTHING).all()


def test_several_tokens_of_a_request_are_refused() -> None:
    backend = parts.ContextParallelMLAImpl.__new__(parts.ContextParallelMLAImpl)
    metadata = SimpleNamespace(decode=SimpleNamespace(block_table=None, seq_lens=torch.tensor([4])))
    with pytest.raises(RuntimeError, match="3 tokens of 1 requests"):
        backend.forward_mqa(torch.zeros(3, HEADS, RANK + ROPE), torch.zeros(1, BLOCK, 24), metadata, None)


def test_the_query_is_replicated_only_where_it_pays_or_is_asked_for() -> None:
    text = SimpleNamespace(
        num_hidden_layers=78,
        num_attention_heads=64,
        q_lora_rank=2048,
        kv_lora_rank=512,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
    )
    for asked, found in ((None, False), (True, True), (False, False)):
        parallel = SimpleNamespace(decode_context_parallel_size=4, dcp_q_replicate=asked)
        model = SimpleNamespace(hf_text_config=text, quantization="compressed-tensors")
        dcp_query.choose(SimpleNamespace(parallel_config=parallel, model_config=model))
        assert parallel.dcp_q_replicate is found
    assert dcp_query.needed(Target("0.32.0", "cpu")) is not None
