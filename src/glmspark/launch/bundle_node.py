"""Runs on a node by itself (python3 -I -c), standard library only: prints files of a deployment as JSON.

Arguments: the deployment's name, bytes of one file at most, bytes in all at most. What is a secret there (in
the deployment's spec, environment and key files) is taken out before anything leaves the node.
"""

import base64
import json
import os
import sys
from pathlib import Path

KEPT = ("state.json", "record.json", "guard.json")
TREES = (("logs", None), ("logs.previous", None), ("evidence", 2))
SECRET_FILES = ("env", "lockstep-secret", "api-key")
SECRET_NAMES = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh", b"PK\x03\x04", b"\x04\x22\x4d\x18")
RING = 20


def secrets_of(home):
    """Values that must not leave: of secret files, and of the spec's secrets and environment."""
    found = set()
    for name in SECRET_FILES:
        try:
            text = (home / name).read_text("utf-8", "replace")
        except OSError:
            continue
        for line in text.splitlines():
            found.add(line.partition("=")[2] if "=" in line else line)
            found.add(line)
    try:
        spec = json.loads((home / "spec.json").read_bytes())
    except (OSError, ValueError):
        spec = {}
    if isinstance(spec, dict):
        collect(spec.get("secrets"), found)
        for part in ("env", "env_file"):
            named = spec.get(part)
            for key, value in named.items() if isinstance(named, dict) else ():
                if any(word in key.upper() for word in SECRET_NAMES):
                    collect(value, found)
    return sorted({one.strip().encode() for one in found if len(one.strip()) >= 8}, key=len, reverse=True)


def collect(value, found):
    """All texts in a value."""
    if isinstance(value, str):
        found.add(value)
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        collect(one, found)


def entries_of(path):
    """What is in a directory, by name; nothing where it is not there or may not be read."""
    try:
        return sorted(path.iterdir(), key=lambda entry: entry.name)
    except OSError:
        return []


class Files:
    """What was gathered, within bounds."""

    def __init__(self, most, total, secrets):
        self.most, self.left, self.secrets = most, total, secrets
        self.files, self.notes = {}, []

    def file(self, path, name):
        """The end of a file."""
        try:
            with path.open("rb") as file:
                if file.read(8).startswith(PACKED):  # it cannot be looked through for secrets
                    self.notes.append(f"{name}: left out, for it is compressed")
                    return
                size = file.seek(0, 2)
                file.seek(max(0, size - self.most))
                data = file.read(self.most)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.notes.append(f"{name}: {error.strerror}")
            return
        if size > self.most:
            self.notes.append(f"{name}: its last {self.most} of {size} bytes")
            data = data.partition(b"\n")[2]  # half a secret would not be recognised as one
        if len(data) > self.left:
            self.notes.append(f"{name}: left out, there is too much")
            return
        for secret in self.secrets:
            wide = secret.decode("utf-8", "replace")
            for form in (secret, wide.encode("utf-16-le"), wide.encode("utf-16-be")):
                data = data.replace(form, b"[removed]")
        self.left -= len(data)
        self.files[name] = base64.b64encode(data).decode()

    def tree(self, path, name, newest=None):
        """The files below a directory; links are not followed."""
        entries = entries_of(path)
        for entry in entries[-newest:] if newest else entries:
            if entry.is_symlink():
                continue
            if entry.is_dir():
                self.tree(entry, f"{name}/{entry.name}")
            elif entry.is_file():
                self.file(entry, f"{name}/{entry.name}")


def main(name, most, total):
    """Print what there is."""
    own = Path(os.environ.get("GLMSPARK_STATE_DIR") or Path.home() / ".local/state/glmspark")
    home = own / "ranks" / name
    files = Files(int(most), int(total), secrets_of(home))
    for one in KEPT:
        files.file(home / one, one)
    for tree, newest in TREES:
        files.tree(home / tree, tree, newest)
    for guard in (own / "guard", Path("/var/lib/glmspark/guard")):
        if os.access(guard / "state.json", os.R_OK):
            files.file(guard / "state.json", "guard/state.json")
            files.tree(guard / "ring", "guard/ring", RING)
            for node in entries_of(guard / "peers"):
                files.tree(node, f"guard/peers/{node.name}", RING)
            break
    json.dump({"files": files.files, "notes": files.notes}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:4])
