"""The load format `spark`: weights from disk to the device without leaving page cache behind.

On a machine whose GPU and host share one memory, every page that the cache keeps of a checkpoint is missing
to the model. `pieces` says what to read, `files` and `reader` read it, `choice` finds out how best,
`tensors` makes tensors of it, and `spark` is vLLM's loader class.
"""
