"""The entry point in `vllm.platform_plugins`: which platform class vLLM takes, asked in every vLLM process.

It answers only below a ray node with a CPU build of vLLM; everywhere else vLLM's own platform stays. It
imports nothing of vLLM, for it is asked in the middle of vLLM's own import.
"""

from __future__ import annotations

import os

from glmspark.engine.ray.commands import SWITCH

PLATFORM = "glmspark.engine.ray.platform.RayCpuPlatform"


def platform() -> str | None:
    """The class's name, or None where vLLM's own platform is to stay."""
    if os.environ.get(SWITCH) != "1":
        return None
    from glmspark.engine.code import installed_code
    from glmspark.engine.patch import Holds
    from glmspark.engine.patches.cpu_ray import precondition
    from glmspark.engine.start_method import is_cpu_build

    if not is_cpu_build():
        return None
    # Where the code is another, vLLM's own platform comes up, and the patch refuses the launch and says why.
    return PLATFORM if precondition(installed_code()).holds is Holds.YES else None
