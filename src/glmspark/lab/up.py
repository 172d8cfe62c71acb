"""Making a lab, and whatever happens, either the whole of it or nothing."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from glmspark.config.files import make_dir, write_atomic
from glmspark.errors import StateError
from glmspark.lab import commands, guards, holders, mounts, needs, node_files, texts
from glmspark.lab.cluster import lab_cluster
from glmspark.lab.down import clear, clear_after_failure
from glmspark.lab.locking import locked
from glmspark.lab.look import is_whole
from glmspark.lab.node_files import NodeFiles
from glmspark.lab.record import LabHome, LabRecord, NodeRecord, State
from glmspark.lab.run import LabError, Runner
from glmspark.lab.services import start_services
from glmspark.lab.spec import LabSpec
from glmspark.lab.wiring import Wiring, free_slots, machine_interface, wire
from glmspark.nodes.processes import boot_id

Report = Callable[[str], None]


def up(home: LabHome, spec: LabSpec, report: Report = lambda _: None) -> LabRecord:
    """Make a lab; fine if the very same stands already. What an earlier, killed one left is cleared first.

    report: told what is being done. LabError where something is missing, another lab stands here or a step
    fails; then nothing is left. The same where it is interrupted (KeyboardInterrupt).
    """
    needs.check()
    make_dir(home.path)
    with locked(home):
        standing = _standing(home)
        if standing is not None:
            if standing.spec == spec:
                report("this lab stands already")
                return standing
            raise LabError(
                f"another lab of {len(standing.nodes)} nodes stands here",
                step="look for a standing lab",
                next="`glmspark lab status` shows it; `glmspark lab down` takes it down",
            )
        cleared = clear(home)
        if not cleared.nothing:
            report("cleared what an earlier lab had left")
        try:
            return _make(home, spec, report)
        except BaseException as error:
            clear_after_failure(home, error)
            raise


def _standing(home: LabHome) -> LabRecord | None:
    """The lab that stands here whole; None where there is none or only remains."""
    try:
        record = home.read()
    except StateError:
        return None
    return record if record is not None and is_whole(record) else None


def _make(home: LabHome, spec: LabSpec, report: Report) -> LabRecord:
    runner = Runner(home)
    if spec.needs_netem and runner.try_run(commands.has_netem(), step="look for netem")[0] != 0:
        raise LabError(
            "this kernel cannot delay or lose packets: tc has no netem here",
            step="look for netem",
            next="leave out --delay and --loss; `glmspark lab cut` and `mend` work anywhere",
        )
    slots = _slots(runner)
    uid = texts.free_id(Path("/etc/passwd").read_text(), Path("/etc/group").read_text())
    record = LabRecord(spec, slots[0], boot_id(), time.time(), uid)
    record.nodes = [NodeRecord(name) for name in record.wiring.nodes]
    home.write(record)

    for path in (home.ssh, home.nodes, home.cache):
        make_dir(path, mode=0o711 if path == home.nodes else 0o700)
    runner.run(commands.keygen(str(home.key), "glmspark lab"), step="make the lab's key")

    report("starting the switch")
    record.switch = holders.start_switch(runner, home.nodes / "switch.log")
    home.write(record)
    wiring = _claim(home, runner, record, slots)
    switch = record.switch.pid
    _in_switch(runner, switch, commands.set_up_switch(wiring))

    report(f"starting {len(record.nodes)} nodes")
    addresses = {name: str(wiring.wifi_port(name).address.ip) for name in wiring.nodes}
    files = {name: NodeFiles(home, name) for name in wiring.nodes}
    _each(
        wiring.nodes,
        lambda name: node_files.make(files[name], Runner(home, name), uid=uid, addresses=addresses),
    )
    secret = secrets.token_hex(32).encode() + b"\n"
    for name in wiring.nodes:
        guards.make(files[name], wiring, uid=uid, secret=secret)
    for node in record.nodes:
        node.holder, node.init = holders.start_node(
            Runner(home, node.name), files[node.name].log / "holder.log"
        )
        home.write(record)
    pids = {node.name: node.init.pid for node in record.nodes if node.init is not None}

    report("laying cables")
    _lay_cables(runner, spec, wiring, switch, pids)
    _each(wiring.nodes, lambda name: _set_up_node(Runner(home, name), spec, wiring, files[name], pids[name]))

    report("starting sshd and Docker, and the guard, on every node")
    _write_ssh_files(home, wiring, files)
    _each(wiring.nodes, lambda name: start_services(Runner(home, name), wiring, files[name], pids[name]))
    write_atomic(home.cluster_file, lab_cluster(home, wiring), mode=0o600)
    record.state = State.UP
    home.write(record)
    _hand_over(home)
    return record


def _hand_over(home: LabHome) -> None:
    """Give what one needs to use the lab to who called sudo; making a lab takes root, using it does not."""
    owner = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() == 0 and all(number.isdecimal() for number in owner):
        for path in (home.path, home.ssh, *home.ssh.iterdir(), home.cluster_file, home.record_file):
            os.chown(path, int(owner[0]), int(owner[1]), follow_symlinks=False)


def _each(names: Iterable[str], work: Callable[[str], None]) -> None:
    """Do something for all nodes at once; the first error is raised when all have ended."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        for future in [pool.submit(work, name) for name in names]:
            future.result()


def _slots(runner: Runner) -> list[int]:
    routes = runner.run(commands.machine_routes(), step="list this machine's routes")
    slots = free_slots(routes, [path.name for path in Path("/sys/class/net").iterdir()])
    if not slots:
        raise LabError(
            "no addresses are left for a lab: this machine has routes into all of 198.18.0.0/15",
            step="choose addresses",
            seen=routes.strip()[:1000],
            next="a proxy or VPN may use that range for itself: stop it, or make the lab elsewhere",
        )
    return slots


def _claim(home: LabHome, runner: Runner, record: LabRecord, slots: list[int]) -> Wiring:
    """Make the machine's port. Its name is the slot's: of two labs that start at once, one takes the next."""
    assert record.switch is not None  # noqa: S101 - the caller has just started it
    taken = ""
    for slot in slots:
        record.slot = slot
        home.write(record)
        wiring = wire(record.spec, slot)
        network = next(network for network in wiring.networks if wiring.machine in network.ports)
        argv = commands.claim_machine_port(wiring.machine, record.switch.pid)
        code, _, taken = runner.try_run(argv, step="join the machine to the lab")
        if code == 0:
            record.claimed = True
            home.write(record)
            runner.run_all(
                [
                    *commands.set_up_machine_port(wiring.machine, network),
                    *commands.shape_machine(record.spec, wiring.machine, network),
                ],
                step="join the machine to the lab",
            )
            return wiring
        if not (Path("/sys/class/net") / machine_interface(slot)).exists():
            break
    raise LabError(
        "the machine cannot be joined to the lab",
        step="join the machine to the lab",
        seen=taken.strip() or None,
    )


def _in_switch(runner: Runner, switch: int, argvs: list[commands.Argv]) -> None:
    runner.run_all([commands.enter_switch(switch, argv) for argv in argvs], step="set up the switch")


def _lay_cables(runner: Runner, spec: LabSpec, wiring: Wiring, switch: int, pids: dict[str, int]) -> None:
    for network in wiring.networks:
        for port in network.ports:
            if port.node is None:
                made = commands.join_bridge(network, port)
            else:
                made = commands.plug_in(network, port, pids[port.node])
            _in_switch(runner, switch, [*made, *commands.shape_far_end(spec, network, port)])


def _set_up_node(runner: Runner, spec: LabSpec, wiring: Wiring, files: NodeFiles, pid: int) -> None:
    """Everything a node is before its daemons start; process 1 of it is `pid`."""
    step = f"set up {files.name}"

    def inside(argvs: list[commands.Argv]) -> None:
        runner.run_all([commands.enter(pid, argv) for argv in argvs], step=step)

    root = str(files.root)
    inside([["hostname", files.name], mounts.share_tree(root)])
    seen = mounts.parse_mountinfo(runner.run(commands.enter(pid, mounts.list_mounts()), step=step))
    inside(mounts.make_read_only(root, seen))
    locked_here = [path for path in mounts.LOCKED if Path(path).exists()]
    inside(mounts.own_mounts(root, str(files.own), node_files.exposed_paths(), locked_here))
    inside(mounts.enter_tree(root))
    inside(commands.set_up_node_network(wiring, files.name))
    inside(commands.shape_node(spec, wiring, files.name))


def _write_ssh_files(home: LabHome, wiring: Wiring, files: dict[str, NodeFiles]) -> None:
    keys = {
        name: (
            [str(port.address.ip) for port in [*wiring.fabric(name), wiring.wifi_port(name)]],
            files[name].public_host_key.read_text(),
        )
        for name in wiring.nodes
    }
    write_atomic(home.known_hosts, texts.known_hosts(keys).encode(), mode=0o600)
    reached = {name: str(wiring.reached_at(name)) for name in wiring.nodes}
    config = texts.ssh_config(reached, str(home.key), str(home.known_hosts))
    write_atomic(home.ssh_config, config.encode(), mode=0o600)
