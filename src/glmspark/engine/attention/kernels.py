"""The Triton kernels. Nothing here chooses anything; `decode` launches them.

Attention over a split of the keys keeps the running maximum and sum of softmax (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018) in base 2; splits are merged by their LSE. The latent is
worked on in quarters of 128: a quarter is what shares a scale in fp8_ds_mla, so that scales multiply the few
products instead of the many values, and no dequantised copy of a key exists.
"""

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
PLAIN = tl.constexpr(0)
FP8 = tl.constexpr(1)
PACKED = tl.constexpr(2)

# Numbers that differ from call to call; a kernel compiled anew for each would gain nothing.
VARIES = [
    "heads",
    "rank",
    "world",
    "interleave",
    "places_row",
    "out_split",
    "lse_row",
    "lse_head",
    "lse_split",
]
PARTS_VARY = [
    "count",
    "parts_part",
    "part_lses_row",
    "part_lses_head",
    "part_lses_part",
    "lse_row",
    "lse_head",
]


@triton.jit(do_not_specialize=VARIES)
def attend(
    query,
    latent,
    rope,
    scales,
    places,
    lengths,
    starts,
    out,
    lse,
    scale_log2,
    heads,
    rank,
    world,
    interleave,
    query_row,
    query_head,
    latent_page,
    latent_token,
    rope_page,
    rope_token,
    scales_page,
    scales_token,
    places_row,
    out_row,
    out_head,
    out_split,
    lse_row,
    lse_head,
    lse_split,
    ROPE: tl.constexpr,
    ROPE_AT: tl.constexpr,
    SCALES_AT: tl.constexpr,
    FORMAT: tl.constexpr,
    SPARSE: tl.constexpr,
    PAGE: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One split of the keys for BLOCK_M of a group's (row, head) pairs; grid (blocks, splits, groups).

    A group is a request with all its rows (dense: rows starts[g] to starts[g + 1], `places` its pages,
    lengths[g] its tokens on all ranks), or one row (sparse: `places` its slots, -1 for none, lengths[row] how
    many of them to look at).
    """
    split = tl.program_id(1)
    group = tl.program_id(2).to(tl.int64)
    if SPARSE:
        first = group
        rows = 1
    else:
        first = tl.load(starts + group).to(tl.int64)
        rows = (tl.load(starts + group + 1) - first).to(tl.int32)
    pair = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if tl.program_id(0) * BLOCK_M >= rows * heads:
        return
    head = pair % heads
    real = pair // heads < rows
    row = first + pair // heads
    if SPARSE:
        length = tl.load(lengths + row, mask=real, other=0)
    else:
        # A row's bound in the whole sequence, and how much of that lies here (shares.row_lengths).
        bound = tl.load(lengths + group) + tl.zeros([BLOCK_M], tl.int32)
        if CAUSAL:
            bound -= rows - 1 - pair // heads
        bound = tl.where(real, tl.maximum(bound, 0), 0)
        length = bound // (interleave * world) * interleave
        rest = bound - length * world - rank * interleave
        length += tl.minimum(tl.maximum(rest, 0), interleave)
    most = tl.max(length, 0)
    each = tl.cdiv(tl.cdiv(most, tl.num_programs(1)), BLOCK_N) * BLOCK_N
    begin = split * each
    end = tl.minimum(begin + each, most)

    quarter = tl.arange(0, 128)
    at = query + row * query_row + head * query_head
    q0 = tl.load(at[:, None] + quarter[None, :], mask=real[:, None], other=0.0)
    q1 = tl.load(at[:, None] + (128 + quarter)[None, :], mask=real[:, None], other=0.0)
    q2 = tl.load(at[:, None] + (256 + quarter)[None, :], mask=real[:, None], other=0.0)
    q3 = tl.load(at[:, None] + (384 + quarter)[None, :], mask=real[:, None], other=0.0)
    if ROPE > 0:
        turned = tl.arange(0, ROPE)
        q_rope = tl.load(at[:, None] + (512 + turned)[None, :], mask=real[:, None], other=0.0)
    if FORMAT == FP8:
        key_scale = tl.load(scales)
        scale_log2 *= key_scale

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc0 = tl.zeros([BLOCK_M, 128], tl.float32)
    acc1 = tl.zeros([BLOCK_M, 128], tl.float32)
    acc2 = tl.zeros([BLOCK_M, 128], tl.float32)
    acc3 = tl.zeros([BLOCK_M, 128], tl.float32)
    for start in tl.range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        used = key < end
        if SPARSE:
            slot = tl.load(places + group * places_row + key, mask=used, other=-1)
            used = slot >= 0
            page = (slot // PAGE).to(tl.int64)
            token = slot % PAGE
        else:
            page = tl.load(places + group * places_row + key // PAGE, mask=used, other=0).to(tl.int64)
            token = key % PAGE
        from_latent = latent + page * latent_page + token * latent_token
        k0 = tl.load(from_latent[:, None] + quarter[None, :], mask=used[:, None], other=0.0)
        k1 = tl.load(from_latent[:, None] + (128 + quarter)[None, :], mask=used[:, None], other=0.0)
        k2 = tl.load(from_latent[:, None] + (256 + quarter)[None, :], mask=used[:, None], other=0.0)
        k3 = tl.load(from_latent[:, None] + (384 + quarter)[None, :], mask=used[:, None], other=0.0)
        k0 = k0.to(q0.dtype)
        k1 = k1.to(q0.dtype)
        k2 = k2.to(q0.dtype)
        k3 = k3.to(q0.dtype)
        if FORMAT == PACKED:
            from_scales = scales + page * scales_page + token * scales_token + SCALES_AT
            s0 = tl.load(from_scales, mask=used, other=0.0)
            s1 = tl.load(from_scales + 1, mask=used, other=0.0)
            s2 = tl.load(from_scales + 2, mask=used, other=0.0)
            s3 = tl.load(from_scales + 3, mask=used, other=0.0)
            score = tl.dot(q0, tl.trans(k0)) * s0[None, :]
            score += tl.dot(q1, tl.trans(k1)) * s1[None, :]
            score += tl.dot(q2, tl.trans(k2)) * s2[None, :]
            score += tl.dot(q3, tl.trans(k3)) * s3[None, :]
        else:
            score = tl.dot(q0, tl.trans(k0))
            score = tl.dot(q1, tl.trans(k1), score)
            score = tl.dot(q2, tl.trans(k2), score)
            score = tl.dot(q3, tl.trans(k3), score)
        if ROPE > 0:
            from_rope = rope + page * rope_page + token * rope_token + ROPE_AT
            k_rope = tl.load(from_rope[:, None] + turned[None, :], mask=used[:, None], other=0.0)
            score = tl.dot(q_rope, tl.trans(k_rope.to(q0.dtype)), score)
        seen = used[None, :] & (key[None, :] < length[:, None])
        score = tl.where(seen, score * scale_log2, float("-inf"))
        above = tl.maximum(top, tl.max(score, 1))
        # Where nothing has been seen yet, minus infinity less itself would be no number.
        level = tl.where(above == float("-inf"), 0.0, above)
        fade = tl.exp2(top - level)
        p = tl.exp2(score - level[:, None])
        total = total * fade + tl.sum(p, 1)
        top = above
        acc0 *= fade[:, None]
        acc1 *= fade[:, None]
        acc2 *= fade[:, None]
        acc3 *= fade[:, None]
        if FORMAT == PACKED:
            acc0 = tl.dot((p * s0[None, :]).to(q0.dtype), k0, acc0)
            acc1 = tl.dot((p * s1[None, :]).to(q0.dtype), k1, acc1)
            acc2 = tl.dot((p * s2[None, :]).to(q0.dtype), k2, acc2)
            acc3 = tl.dot((p * s3[None, :]).to(q0.dtype), k3, acc3)
        else:
            weight = p.to(q0.dtype)
            acc0 = tl.dot(weight, k0, acc0)
            acc1 = tl.dot(weight, k1, acc1)
            acc2 = tl.dot(weight, k2, acc2)
            acc3 = tl.dot(weight, k3, acc3)

    share = 1.0 / tl.where(total > 0, total, 1.0)
    if FORMAT == FP8:
        share *= key_scale
    to = out + row * out_row + head * out_head + split * out_split
    kind = out.dtype.element_ty
    tl.store(to[:, None] + quarter[None, :], (acc0 * share[:, None]).to(kind), mask=real[:, None])
    tl.store(to[:, None] + (128 + quarter)[None, :], (acc1 * share[:, None]).to(kind), mask=real[:, None])
    tl.store(to[:, None] + (256 + quarter)[None, :], (acc2 * share[:, None]).to(kind), mask=real[:, None])
    tl.store(to[:, None] + (384 + quarter)[None, :], (acc3 * share[:, None]).to(kind), mask=real[:, None])
    # log2(0) is minus infinity: nothing was seen.
    natural = (tl.where(top == float("-inf"), 0.0, top) + tl.log2(total)) * LN2
    tl.store(lse + row * lse_row + head * lse_head + split * lse_split, natural, mask=real)


@triton.jit(do_not_specialize=PARTS_VARY)
def merge(
    parts,
    part_lses,
    starts,
    out,
    lse,
    count,
    requests,
    parts_row,
    parts_head,
    parts_part,
    part_lses_row,
    part_lses_head,
    part_lses_part,
    out_row,
    out_head,
    lse_row,
    lse_head,
    BY_REQUEST: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Parts of attention as one, weighted by their LSE; grid (rows, heads, 512 / WIDTH).

    Where every LSE is minus infinity, or the row is no request's (BY_REQUEST: from starts[requests] on):
    zeros and minus infinity, whatever the parts hold.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    if BY_REQUEST:
        count = tl.where(row < tl.load(starts + requests), count, 0)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([WIDTH], tl.float32)
    for first in range(0, count, BLOCK):
        part = first + tl.arange(0, BLOCK)
        there = part < count
        level = tl.load(
            part_lses + row * part_lses_row + head * part_lses_head + part * part_lses_part,
            mask=there,
            other=float("-inf"),
        )
        there = level > float("-inf")
        above = tl.maximum(top, tl.max(level, 0))
        safe = tl.where(above == float("-inf"), 0.0, above)
        weight = tl.exp(level - safe)
        fade = tl.exp(top - safe)
        values = tl.load(
            (parts + row * parts_row + head * parts_head + part.to(tl.int64) * parts_part)[:, None]
            + column[None, :],
            mask=there[:, None],
            other=0.0,
        ).to(tl.float32)
        acc = acc * fade + tl.sum(values * weight[:, None], 0)
        total = total * fade + tl.sum(weight, 0)
        top = above
    result = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + row * out_row + head * out_head + column, result.to(out.dtype.element_ty))
    if tl.program_id(2) == 0:
        whole = tl.where(top == float("-inf"), 0.0, top) + tl.log(total)
        tl.store(lse + row * lse_row + head * lse_head, whole)
