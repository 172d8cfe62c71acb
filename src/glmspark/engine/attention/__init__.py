"""MLA decoding in Triton, portable and small enough for GB10, where no other sparse kernel returns an LSE.

`layout` says how a KV cache is laid out, `kernels` attends, `shapes` chooses block sizes, `decode` launches,
`shares` is the arithmetic of decode context parallelism, `reference` is what all of it is measured against.
"""
