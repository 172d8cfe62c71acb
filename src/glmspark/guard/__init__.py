"""The guard: the daemon on a node that keeps it reachable while a deployment runs there.

On a Spark the GPU and the host share one memory: a node without free memory loses sshd and has to be
power-cycled. The guard reads memory, the kernel log, the GPU, links, disks and the ranks' processes once a
second (four times when memory is low), drops the page cache while a model loads, closes the door to new
requests at a first threshold and stops the deployment on all ranks at a second one, while ssh still answers.
What it saw in the last hour lies on disk, and on one other node.

It is a package of the standard library alone (Python 3.10 and newer) and imports nothing else of glmspark: it
is shipped as one zip archive and run as `python3 guard.pyz run|supervise|state|once --home DIR`.

    DIR = /var/lib/glmspark/guard (installed by `glmspark tune`), ~/.local/state/glmspark/guard (in a lab)
        guard.pyz  config.json  secret (0600)  state.json  lock  oom.json
        ring/ (last hour of this node)  peers/NODE/ (last hour of other nodes)

Readings are collected by `sample`, judged by the pure functions of `decide` and `alerts`, and acted on by
`act`. Times in files are Unix seconds, sizes bytes, rates bytes a second.
"""

VERSION = "0.1.0"
"""Of what it writes and serves; beside it a deployed archive is known by its hash."""
