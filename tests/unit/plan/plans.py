"""Recipes, checkpoints and machines for plan tests."""

import json
from pathlib import Path
from typing import Any

from glmspark.config import Recipe, parse_recipe
from glmspark.models import Checkpoint, inspect_checkpoint
from glmspark.plan import MachineFacts
from tests.unit.config.recipes import recipe_data
from tests.unit.models.toys import write_checkpoint

GIB = 2**30
BOX = MachineFacts("box", (0, 1), 24 * GIB, 20 * GIB)
ROOMY = MachineFacts("box", tuple(range(64)), 2**50, 2**50)


def recipe(**sections: Any) -> Recipe:
    return parse_recipe(json.dumps(recipe_data(**sections)).encode(), "toy.yaml")


def checkpoint(directory: Path, **config: Any) -> Checkpoint:
    from tests.unit.models.toys import toy

    return inspect_checkpoint(write_checkpoint(directory, toy(**config)))
