"""The agent of one rank on its node: what runs there for a deployment of a cluster.

It is a package of the standard library alone (Python 3.10 and newer) and imports nothing else of glmspark: it
is shipped as one zip archive over SSH to machines that have nothing of glmspark, and run there as `python3
agent.pyz start|follow|ready|stop|status|clean|resume ...`. The agent starts the rank as a process or a
container, keeps its log and state, and sees to it that no rank outlives the deployment: the agents of all
ranks watch one another over the fabric, and when a rank ends, an agent falls silent or a connection closes,
every agent stops its rank. A reaper stops the rank of an agent that was killed. Until the deployment is
proven, the agent also stops when the machine that started it is gone (the leash). Once it is proven, rank 0's
agent judges whether it stands still, and a rank that ends or stands still begins the deployment anew as a
whole, as often as the spec allows.

    DIR = ~/.local/state/glmspark/ranks/NAME
        agent.pyz  spec.json (0600)  state.json  record.json  guard.json  lock  agent.sock
        evidence/TIME/: what a rank looked like when it stood still or ended
        logs/rank-N.log, logs/agent.log; logs.previous of the start before
        env, lockstep-secret (0600): only while the rank runs

Times in files are Unix seconds, sizes bytes.
"""
