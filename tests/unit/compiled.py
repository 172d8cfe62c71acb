"""Archives of ours with compiled code beside the source: what tests start need not compile it each time."""

from __future__ import annotations

import functools
import io
import py_compile
import tempfile
import zipfile
from pathlib import Path


@functools.cache
def compiled(archive: bytes) -> bytes:
    """The same program, for this Python."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(packed, "w") as whole:
        zipfile.ZipFile(io.BytesIO(archive)).extractall(place)
        for path in sorted(Path(place).rglob("*.py")):
            name = str(path.relative_to(place))
            # Python takes compiled code in an archive unasked only if it names no time of its source.
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            code = py_compile.compile(str(path), f"{path}c", name, doraise=True, invalidation_mode=mode)
            whole.write(path, name)
            whole.write(str(code), f"{name}c")
    return packed.getvalue()
