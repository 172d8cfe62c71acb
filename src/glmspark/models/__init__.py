"""What is known of GLM: architecture arithmetic and checkpoint inspection, without torch."""

from glmspark.models.architecture import Architecture, Layer, TensorSpec
from glmspark.models.checkpoint import Checkpoint, inspect_checkpoint
from glmspark.models.errors import CheckpointError
from glmspark.models.families import read_architecture
from glmspark.models.source import locate

__all__ = [
    "Architecture",
    "Checkpoint",
    "CheckpointError",
    "Layer",
    "TensorSpec",
    "inspect_checkpoint",
    "locate",
    "read_architecture",
]
