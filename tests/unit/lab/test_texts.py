from hypothesis import given
from hypothesis import strategies as st

from glmspark.lab import texts

PASSWD = """\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
alice:x:1000:1000:Alice,,,:/home/alice:/bin/zsh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
GROUP = "root:x:0:\ndaemon:x:1:\nalice:x:1000:\nshared:x:1001:alice\nnogroup:x:65534:\n"


def test_the_lab_s_user_has_a_number_that_no_one_else_has():
    assert texts.free_id(PASSWD, GROUP) == 1002
    assert texts.free_id("", "") == 1000


@given(st.sets(st.integers(1000, 1100)))
def test_free_numbers(taken):
    passwd = "".join(f"u{number}:x:{number}:0::/:/bin/sh\n" for number in taken)
    found = texts.free_id(passwd, "not a line\n\n")
    assert found not in taken
    assert all(number in taken for number in range(1000, found))


def test_accounts():
    passwd = texts.passwd_text(PASSWD, 1002)
    assert passwd.startswith(PASSWD)
    assert passwd.endswith("spark:x:1002:1002:lab user:/home/spark:/bin/bash\n")
    shadow = texts.shadow_text(passwd)
    assert [line.split(":")[:2] for line in shadow.splitlines()] == [
        [name, "*"] for name in ("root", "daemon", "alice", "nobody", "spark")
    ]


def test_a_user_of_the_same_name_is_replaced():
    passwd = texts.passwd_text(PASSWD + "spark:x:1005:1005::/home/spark:/bin/sh\n", 1002)
    assert passwd.count("\nspark:") == 1
    assert "1005" not in passwd


def test_the_user_may_use_docker():
    group = texts.group_text(GROUP + "docker:x:106:alice\n", 1002)
    assert "docker:x:106:spark\n" in group
    assert "alice:x:1000:\n" in group
    assert group.endswith("spark:x:1002:\n")
    made = texts.group_text(GROUP, 1002)
    assert "docker:x:999:spark\n" in made


def test_hosts_name_the_others_and_the_node_itself_as_debian_does():
    text = texts.hosts_text("spark2", {"spark1": "198.19.0.11", "spark2": "198.19.0.12"})
    assert "127.0.1.1\tspark2\n" in text
    assert "198.19.0.11\tspark1\n" in text
    assert "198.19.0.12" not in text


def test_nobody_logs_in_with_a_password_or_as_root():
    lines = texts.sshd_config().splitlines()
    assert {"PermitRootLogin no", "PasswordAuthentication no", "KbdInteractiveAuthentication no"} <= set(
        lines
    )
    assert "AllowUsers spark" in lines
    assert "spark ALL=(ALL:ALL) NOPASSWD: ALL\n" in texts.sudoers()


def test_known_hosts_and_config():
    known = texts.known_hosts({"spark1": (["198.18.0.11", "198.19.0.11"], "ssh-ed25519 AAAAC3 spark1\n")})
    assert known == "198.18.0.11,198.19.0.11,spark1 ssh-ed25519 AAAAC3\n"
    config = texts.ssh_config({"spark1": "198.18.0.11", "spark2": "198.18.0.12"}, "/s p/key", "/s p/known")
    assert 'IdentityFile "/s p/key"' in config
    assert "Host spark1\n    HostName 198.18.0.11\n" in config
    assert "Host spark1 spark2\n" in config
    assert "StrictHostKeyChecking yes" in config
