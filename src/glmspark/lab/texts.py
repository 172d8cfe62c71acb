"""What stands in a node's own /etc: pure functions from facts to file texts.

A node's /etc is a copy of the machine's, so that its programs find what they are used to, with these files
written anew: nobody can log in but the lab's user, and only with the lab's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

USER = "spark"
"""The ordinary user of every node."""

_FIRST_ID, _LAST_ID = 1000, 59999
_SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def free_id(passwd: str, group: str) -> int:
    """The least number from 1000 up that is neither a user's nor a group's in these files.

    Files of the machine's own users, which a node can read, never belong to the node's user.
    """
    taken = {_number(line) for line in [*passwd.splitlines(), *group.splitlines()]}
    return next(number for number in range(_FIRST_ID, _LAST_ID) if number not in taken)


def _number(line: str) -> int | None:
    fields = line.split(":")
    return int(fields[2]) if len(fields) > 2 and fields[2].isdecimal() else None


def passwd_text(machine: str, uid: int) -> str:
    """/etc/passwd: the machine's accounts and the lab's user."""
    return _others(machine) + f"{USER}:x:{uid}:{uid}:lab user:/home/{USER}:/bin/bash\n"


def group_text(machine: str, uid: int) -> str:
    """/etc/group: the machine's groups; the lab's user has one of its own and is in `docker`."""
    lines = []
    docker = False
    taken = {uid}
    for line in _others(machine).splitlines():
        number = _number(line)
        if number is not None:
            taken.add(number)
        if line.startswith("docker:"):
            docker = True
            line = f"docker:x:{number}:{USER}"  # noqa: PLW2901 - the one line that changes
        lines.append(line)
    if not docker:
        number = next(number for number in range(999, 99, -1) if number not in taken)
        lines.append(f"docker:x:{number}:{USER}")
    return "\n".join([*lines, f"{USER}:x:{uid}:"]) + "\n"


def shadow_text(passwd: str) -> str:
    """/etc/shadow for a /etc/passwd: no account has a password, and none is locked against keys."""
    names = [line.partition(":")[0] for line in passwd.splitlines() if line.count(":") == 6]
    return "".join(f"{name}:*:19000:0:99999:7:::\n" for name in names)


def _others(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line and not line.startswith(f"{USER}:"))


def hosts_text(node: str, addresses: Mapping[str, str]) -> str:
    """/etc/hosts: the node's own name at 127.0.1.1, as Debian and Ubuntu write it, the others at theirs."""
    lines = ["127.0.0.1\tlocalhost", f"127.0.1.1\t{node}", "::1\tlocalhost ip6-localhost ip6-loopback"]
    lines += [f"{address}\t{name}" for name, address in addresses.items() if name != node]
    return "\n".join(lines) + "\n"


def sshd_config() -> str:
    """/etc/ssh/sshd_config: keys only, the lab's user only."""
    return (
        "ListenAddress 0.0.0.0\n"
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
        f"AllowUsers {USER}\n"
        "PermitRootLogin no\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "UsePAM no\n"
        "UseDNS no\n"
        "PrintMotd no\n"
        "AuthorizedKeysFile .ssh/authorized_keys\n"
        "PidFile /run/sshd.pid\n"
        "MaxStartups 100\n"
        "MaxSessions 100\n"
        "AcceptEnv LANG LC_*\n"
        "Subsystem sftp internal-sftp\n"
    )


def sudoers() -> str:
    """/etc/sudoers: the lab's user may everything without a password, as on a Spark set up for clusters."""
    return (
        "Defaults env_reset\n"
        f'Defaults secure_path="{_SAFE_PATH}"\n'
        "root ALL=(ALL:ALL) ALL\n"
        f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n"
    )


def nsswitch() -> str:
    """/etc/nsswitch.conf: files alone; there is nobody to ask, and asking takes until a time-out."""
    names = ("passwd", "group", "shadow", "hosts", "networks", "protocols", "services", "ethers", "rpc")
    return "".join(f"{name}: files\n" for name in names)


def known_hosts(keys: Mapping[str, tuple[Sequence[str], str]]) -> str:
    """known_hosts of a lab: node -> (addresses, public host key as its .pub file has it)."""
    lines = []
    for node, (addresses, public) in keys.items():
        kind, key = public.split()[:2]
        lines.append(f"{','.join([*addresses, node])} {kind} {key}\n")
    return "".join(lines)


def ssh_config(addresses: Mapping[str, str], key: str, known: str) -> str:
    """What `ssh -F` needs to reach the nodes by name."""
    text = "".join(f"Host {node}\n    HostName {address}\n" for node, address in addresses.items())
    return (
        text + f"Host {' '.join(addresses)}\n"
        f"    User {USER}\n"
        f'    IdentityFile "{key}"\n'
        "    IdentitiesOnly yes\n"
        f'    UserKnownHostsFile "{known}"\n'
        "    StrictHostKeyChecking yes\n"
        "    ConnectTimeout 5\n"
    )
