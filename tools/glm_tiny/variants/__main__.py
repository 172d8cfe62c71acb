"""Make variants of glm-tiny by hand: `python -m tools.glm_tiny.variants glm-tiny-nvfp4`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from tools.glm_tiny.variants import BASE, VARIANTS, Variant, VariantError, is_current, make

PACKAGED = Path(__file__).parents[3] / "src/glmspark/recipes/checkpoints"
ALL, DENSE = "all", "dense"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    names = "\n".join(f"  {name:32}{variant.summary}" for name, variant in VARIANTS.items())
    made = argparse.ArgumentParser(
        prog="python -m tools.glm_tiny.variants",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Make a variant of the glm-tiny checkpoint, where a recipe's package:NAME finds it.",
        epilog=f"variants:\n{names}\n  {ALL:32}every one of them\n"
        f"  {DENSE:32}a quantized checkpoint (--from) as bf16 again (--to)\n\n"
        "example:\n  python -m tools.glm_tiny.variants glm-tiny-nvfp4 --to /tmp/glm-tiny-nvfp4",
    )
    made.add_argument("name", choices=[*VARIANTS, ALL, DENSE], metavar="NAME", help="see below")
    made.add_argument("--from", dest="source", type=Path, metavar="DIR", help="checkpoint to start from")
    made.add_argument("--to", dest="target", type=Path, metavar="DIR", help="folder to make")
    made.add_argument("--replace", action="store_true", help="remove the checkpoint that stands there first")
    made.add_argument("--per-layer", action="store_true", help="a file a layer and an index")
    return made


def checkpoints() -> Path:
    """Where recipes look for checkpoints that are not part of the package."""
    from glmspark.config import state_dir

    return state_dir() / "checkpoints"


def source_of(variant: Variant, given: Path | None) -> Path:
    """The checkpoint to start from: the given one, the packaged one, or a variant made before."""
    if given:
        return given
    return PACKAGED / BASE if variant.source == BASE else checkpoints() / variant.source


def remove(target: Path) -> None:
    """Remove a checkpoint folder; raises VariantError for a folder that holds something else."""
    if not (target / "config.json").is_file():
        raise VariantError(f"{target} is no checkpoint; it stays as it is")
    shutil.rmtree(target)


def make_one(name: str, source: Path, target: Path, arguments: argparse.Namespace) -> None:
    """Make a variant, unless `target` is that already, and print a line about it."""
    start = time.monotonic()
    if target.is_dir() and any(target.iterdir()):
        if arguments.replace:
            remove(target)
        elif is_current(name, source, target):
            print(f"{name}: up to date -> {target}")
            return
        else:
            raise VariantError(
                f"{target} holds something else, or this from another checkpoint; see --replace"
            )
    made = make(name, source, target, per_layer=arguments.per_layer or None)
    print(f"{name}: {made.size / 1e6:.1f} MB in {time.monotonic() - start:.1f} s -> {target}", flush=True)


def run(arguments: argparse.Namespace) -> None:
    """Make what the command line asks for."""
    if arguments.name == DENSE:
        make_dense(arguments)
        return
    if arguments.name == ALL and (arguments.source or arguments.target):
        raise VariantError(f"{ALL} takes neither --from nor --to: each variant has a place of its own")
    for name in VARIANTS if arguments.name == ALL else [arguments.name]:
        source = source_of(VARIANTS[name], arguments.source)
        make_one(name, source, arguments.target or checkpoints() / name, arguments)


def make_dense(arguments: argparse.Namespace) -> None:
    """Write a quantized checkpoint as bf16."""
    if not (arguments.source and arguments.target):
        raise VariantError(f"{DENSE} needs --from and --to")
    from tools.glm_tiny.variants.checkpoint import write
    from tools.glm_tiny.variants.dense import derive

    made = derive(arguments.source)
    write(made, arguments.target, per_layer=arguments.per_layer)
    print(f"{DENSE}: {made.size / 1e6:.1f} MB -> {arguments.target}")


def main() -> int:
    """The command; its exit code is 0, 1 for what cannot be made and 2 for a wrong command line."""
    arguments = parser().parse_args()
    try:
        run(arguments)
    except (VariantError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
