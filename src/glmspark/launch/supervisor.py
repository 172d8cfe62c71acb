"""The process that answers for a deployment: `python -m glmspark.launch.supervisor DIRECTORY --lock FD`.

It starts the ranks, watches them, has them proven, keeps the record, and stops all of them together when one
ends, when time runs out, or when it is asked to (SIGTERM). It runs in a session of its own with a single
thread, and holds the deployment's lock for as long as it lives. Until the deployment is ready it also ends
when whoever started it does (end of file on standard input).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from glmspark.errors import GlmsparkError, StateError
from glmspark.launch import phases, ranks, reasons, sweep
from glmspark.launch.command import KEY_VARIABLE, inherited_env, lay_out_secret
from glmspark.launch.faults import FirstError
from glmspark.launch.phases import FOLLOWING, Phase, Progress
from glmspark.launch.reaper import Reaper, fork_reaper
from glmspark.launch.record import Deployment, Home, Process, RankRecord, Reason, State
from glmspark.launch.say import say
from glmspark.launch.tail import Tail, truncate_large
from glmspark.launch.watch import Ended, Watch, oom_kills
from glmspark.nodes import processes
from glmspark.nodes.processes import Identity

GRACE = 2.0
"""Seconds the ranks get to end by themselves; `down` as a whole has 5."""

_BUSY_TICK, _READY_TICK = 0.25, 1.0
_LOOK_STARTING, _LOOK_EVERY = 0.5, 15.0  # seconds between looks for new processes and segments
_MOST_LOG = 64 << 20  # bytes of one rank's log


@dataclass
class Rank:
    """One rank as the supervisor has it."""

    record: RankRecord
    process: subprocess.Popen[bytes]
    tail: Tail
    progress: Progress = field(default_factory=Progress)
    fault: FirstError = field(default_factory=FirstError)


class Supervisor:
    """One deployment's whole life; `run` returns when nothing of it runs any more."""

    def __init__(self, home: Home, deployment: Deployment, *, starter: int | None) -> None:
        self.home = home
        self.deployment = deployment
        self.ranks: dict[int, Rank] = {}
        self.prover: subprocess.Popen[bytes] | None = None
        self.reaper: Reaper | None = None
        self.began = time.monotonic()
        self.joined: float | None = None
        self.proving_since = 0.0
        self._kills = oom_kills()
        self._asked = False
        self._dirty = True
        self._unwritten: str | None = None  # why the last write of the record failed
        self._looked = 0.0
        self._selector = selectors.DefaultSelector()
        self._watch = Watch(self._selector)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, "signal")
        self._starter = starter
        if starter is not None:
            self._selector.register(starter, selectors.EVENT_READ, "starter")

    # -- life ---------------------------------------------------------------------------------------------

    def run(self, keep: set[int]) -> int:
        """Start, watch, stop. keep: files the reaper must hold as well. Returns the exit code."""
        self._listen()
        ranks.become_subreaper()
        self.reaper = fork_reaper(self.home, keep)
        reason: Reason | None = None
        try:
            self._start()
            reason = self._serve(keep)
        except GlmsparkError as error:
            reason = reasons.of_error(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the ranks must not outlive it
            say(traceback.format_exc())
            reason = reasons.failed(
                f"the supervisor failed: {error!r}", next_step=f"see {self.home.supervisor_log}"
            )
        self._finish(reason)
        return 0 if reason is None else 1

    def _listen(self) -> None:
        for number in (signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def _start(self) -> None:
        own = processes.identify(os.getpid())
        self.deployment.supervisor = Process.of(own) if own else None
        try:
            Path(self.deployment.scratch).mkdir(mode=0o700)
        except OSError as error:
            raise StateError(
                f"cannot make {self.deployment.scratch}: {error.strerror}",
                next="if it is not another user's, remove it; or set TMPDIR to another directory",
            ) from error
        lay_out_secret(self.deployment.ranks[0].env)
        base = inherited_env(os.environ)
        key = self.home.read_key()
        for record in reversed(self.deployment.ranks):  # followers first: the head forms the group
            env = {**base, **record.env}
            if key is not None and record.rank == 0:
                env[KEY_VARIABLE] = key
            log = self.home.rank_log(record.rank)
            process = ranks.start(record.argv, env, log, self.home.path, host=record.node)
            self.ranks[record.rank] = Rank(record, process, Tail(log))
            identity = processes.identify(process.pid)
            if identity is not None:
                record.process = Process.of(identity)
                self._watch.add(record.rank, identity)
            record.phase, record.since = Phase.STARTING.label, time.time()
        self._save()

    def _serve(self, keep: set[int]) -> Reason | None:
        """The loop. Returns None when asked to stop, else why it must."""
        while True:
            events = self._selector.select(_READY_TICK if self._settled else _BUSY_TICK)
            ended = self._watch.ended(events)  # at once: a moment later its parent has taken its exit status
            for key, _ in events:
                if key.data == "signal":
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                elif key.data == "starter" and self._starter_gone():
                    return reasons.failed("`glmspark up` ended before the deployment was ready")
            if self._asked:
                return None
            self._read_logs()
            if ended:
                return self._describe(ended[0])
            self._reap(keep)
            for rank in self.ranks.values():  # one that ended before it could be watched
                if rank.process.poll() is not None:
                    return self._describe(Ended(rank.record.rank, Identity(rank.process.pid, 0), "", None))
            if reason := self._advance():
                return reason
            self._look()
            if self._dirty:
                self._save()

    @property
    def _settled(self) -> bool:
        return self.deployment.state in (State.READY, State.UNPROVEN)

    def _starter_gone(self) -> bool:
        assert self._starter is not None  # noqa: S101 - registered only then
        if os.read(self._starter, 64):
            return False
        self._selector.unregister(self._starter)
        return not self._settled

    # -- looking ------------------------------------------------------------------------------------------

    def _read_logs(self) -> None:
        for rank in self.ranks.values():
            before = rank.progress
            for line in rank.tail.lines():
                rank.progress = phases.advance(rank.progress, line)
                rank.fault.feed(line)
            if str(rank.progress) != str(before):
                self._note(rank, str(rank.progress))
        if 0 in self.ranks and self.ranks[0].progress.phase is Phase.SERVING:
            for rank in self.ranks.values():
                if rank.record.rank and rank.record.phase != FOLLOWING:
                    self._note(rank, FOLLOWING)

    def _note(self, rank: Rank, phase: str) -> None:
        rank.record.phase, rank.record.since = phase, time.time()
        self._dirty = True

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < (_LOOK_EVERY if self._settled else _LOOK_STARTING):
            return
        self._looked = now
        mains = {
            number: rank.record.process.identity for number, rank in self.ranks.items() if rank.record.process
        }
        stats = processes.all_stats()
        self._watch.discover(mains, stats)
        roots = [main.pid for main in mains.values()]
        below = [stat for stat in processes.descendants(roots, stats) if not stat.ended]
        family = [Process(pid=stat.pid, started=stat.started) for stat in below]
        used = sorted(processes.shared_memory([*roots, *(stat.pid for stat in below)]))
        if (family, used) != (self.deployment.family, self.deployment.shared_memory):
            self.deployment.family, self.deployment.shared_memory, self._dirty = family, used, True
        if self._settled:
            for number in self.ranks:
                truncate_large(self.home.rank_log(number), _MOST_LOG)

    def _reap(self, keep: set[int]) -> None:
        """Take the exit status of every child that ended, those inherited as subreaper among them."""
        own = {rank.process.pid: rank.process for rank in self.ranks.values()}
        if self.prover is not None:
            own[self.prover.pid] = self.prover
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if child is None:
                return
            if child.si_pid in own:
                own[child.si_pid].poll()
            else:
                os.waitpid(child.si_pid, 0)
            if self.reaper is not None and child.si_pid == self.reaper.pid:
                self.reaper.abandon()
                self.reaper = fork_reaper(self.home, keep)

    # -- phases -------------------------------------------------------------------------------------------

    def _advance(self) -> Reason | None:
        """Go on where the ranks allow it; a reason to stop where time has run out."""
        if self._settled:
            return None
        now, limits = time.monotonic(), self.deployment.limits
        head = self.ranks[0].progress.phase
        if self.prover is None and head >= Phase.WARMING:
            self._start_prover()  # it imports its client while the server opens
        if head is Phase.SERVING and not self.deployment.proving:
            self.proving_since = now
            self.deployment.proving, self._dirty = True, True
        if self.deployment.proving:
            return self._follow_proof(now)
        if self.joined is None and all(rank.progress.phase >= Phase.JOINING for rank in self.ranks.values()):
            self.joined = now
        waiting = [rank for rank in self.ranks.values() if rank.progress.phase is Phase.JOINING]
        if self.joined is not None and waiting and now - self.joined > limits.join:
            return self._late(waiting[0], "the ranks did not find one another", limits.join)
        if now - self.began > limits.start:
            slowest = min(self.ranks.values(), key=lambda rank: rank.progress.phase)
            return self._late(slowest, "not serving", limits.start)
        return None

    def _late(self, rank: Rank, what: str, seconds: float) -> Reason:
        return reasons.late(rank.record, rank.progress, rank.fault, what, seconds)

    def _start_prover(self) -> None:
        argv = [sys.executable, "-m", "glmspark.launch.prove", str(self.home.path)]
        env = {**inherited_env(os.environ), **self._marks()}
        self.prover = ranks.start(argv, env, self.home.supervisor_log, self.home.path, host="this machine")

    def _marks(self) -> dict[str, str]:
        return {sweep.ID_VARIABLE: self.deployment.id, sweep.HOME_VARIABLE: str(self.home.path)}

    def _follow_proof(self, now: float) -> Reason | None:
        assert self.prover is not None  # noqa: S101 - the caller looked
        code = self.prover.poll()
        if code is None:
            if now - self.proving_since <= self.deployment.limits.prove:
                return None
            self.prover.kill()
            self.prover.wait()
        verdicts = self.home.read_verdicts()
        self.deployment.verdicts, self.deployment.proving, self._dirty = verdicts, False, True
        self.prover = None
        if code == 0:
            self.deployment.turn(State.READY)
            return None
        reason = reasons.unproven(
            verdicts,
            code,
            trouble=self._unwritten,
            prover_log=str(self.home.supervisor_log),
            head_log=str(self.home.rank_log(0)),
        )
        if self.deployment.keep:
            self.deployment.reason = reason
            self.deployment.turn(State.UNPROVEN)
            return None
        return reason

    # -- the end ------------------------------------------------------------------------------------------

    def _describe(self, ended: Ended) -> Reason:
        rank = self.ranks[ended.rank]
        status = ended.wait_status
        if not ended.title:
            status = ranks.status_of(rank.process.wait())
        else:
            time.sleep(0.1)  # for vLLM to say what it knows of it
        self._read_logs()
        return reasons.ended(
            rank.record,
            rank.fault,
            pid=ended.identity.pid,
            title=ended.title,
            status=status,
            oom_kills=oom_kills() - self._kills,
        )

    def _finish(self, reason: Reason | None) -> None:
        """Stop everything, remove what it made, and close the record."""
        if reason is not None:
            say(f"failed: {reason.what}")
        self.deployment.reason = reason
        self.deployment.turn(State.STOPPING)
        self._save()
        relatives = self.deployment.relatives
        left = sweep.members(self.home.path, relatives)
        memory = set(self.deployment.shared_memory) | sweep.segments(left)
        if self.prover is not None:
            self.prover.kill()  # nobody waits for its verdicts any more
        dead = set()
        for rank in self.ranks.values():
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGTERM)
            else:
                dead.add(rank.process.pid)
        for one in left:  # what a dead rank has left in its process group is told by nobody else
            stat = processes.read_stat(one.pid)
            if stat is not None and stat.group in dead:
                processes.send(one, signal.SIGTERM)
        self._drain(GRACE, relatives)
        swept = sweep.sweep(self.home.path, Path(self.deployment.scratch), memory, relatives)
        self._drain(0.5, relatives)
        say(f"stopped; killed {swept.processes}, removed {swept.files}, left {swept.stubborn}")
        self._watch.close()
        self.home.forget_key()
        self.deployment.close(State.FAILED if reason is not None else State.STOPPED)
        for _ in range(
            20
        ):  # the record must not go on saying that it runs, even if the disk is full for a moment
            if self._save(last=True):
                break
            time.sleep(0.1)
        if self.reaper is not None:
            self.reaper.dismiss()

    def _drain(self, seconds: float, relatives: list[Identity]) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and sweep.members(self.home.path, relatives):
            self._reap_quietly()
            time.sleep(0.05)
        self._reap_quietly()

    def _reap_quietly(self) -> None:
        for rank in self.ranks.values():
            rank.process.poll()
        if self.prover is not None:
            self.prover.poll()

    def _save(self, *, last: bool = False) -> bool:
        """Write the record; a full disk is said once in the log and tried again at the next change."""
        try:
            (self.home.write_last if last else self.home.write)(self.deployment)
        except GlmsparkError as error:
            if error.message != self._unwritten:
                say(f"cannot write the record: {error.message}")
            self._unwritten = error.message
            return False
        self._dirty, self._unwritten = False, None
        return True


def main(argv: list[str] | None = None) -> int:
    """Supervise the deployment in a directory whose record is there and whose lock is held."""
    words = sys.argv[1:] if argv is None else argv
    if len(words) != 3 or words[1] != "--lock" or not words[2].isdecimal():
        print("usage: python -m glmspark.launch.supervisor DIRECTORY --lock FD", file=sys.stderr)
        return 2
    home, lock = Home(Path(words[0])), int(words[2])
    os.set_inheritable(lock, False)  # the ranks must not hold it
    os.chdir(home.path)
    deployment = home.read()
    if deployment is None:
        print(f"no record in {home.path}", file=sys.stderr)
        return 2
    return Supervisor(home, deployment, starter=0).run({lock})


if __name__ == "__main__":
    sys.exit(main())
