import sys
from pathlib import Path

import pytest

from glmspark.lab import image

TARGETS = """\
Packages main bookworm bookworm http://mirror.example/debian/
Translations main bookworm bookworm http://mirror.example/debian/
Packages main bookworm-security bookworm-security http://security.example/debian-security/
Packages contrib bookworm bookworm http://mirror.example/debian/
"""


def test_where_apt_gets_packages_from():
    assert image.parse_mirror(TARGETS, "bookworm") == "http://mirror.example/debian/"
    assert image.parse_mirror("Packages main stable trixie https://m.example/debian/\n", "trixie").startswith(
        "https"
    )
    assert image.parse_mirror("Packages main noble http://m.example/ubuntu/\n", "noble").endswith("/ubuntu/")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Packages main\n",
        "Packages main sid sid http://m.example/\n",
        "Packages main bookworm bookworm cdrom://x/\n",
    ],
)
def test_no_usable_source(text):
    with pytest.raises(ValueError, match="no source for bookworm"):
        image.parse_mirror(text, "bookworm")


def test_codename():
    assert image.parse_codename("ID=debian\nVERSION_CODENAME=bookworm\n") == "bookworm"
    assert image.parse_codename('VERSION_CODENAME="noble"\n') == "noble"
    for text in ("", "VERSION_CODENAME=\n", "VERSION_CODENAME=../x\n"):
        with pytest.raises(ValueError, match="VERSION_CODENAME"):
            image.parse_codename(text)


def test_commands():
    recipe = image.Recipe("bookworm", "http://mirror.example/debian/")
    argv = image.make_tree(recipe, "/t")
    assert argv[-5:] == [
        "--variant=minbase",
        "--include=libnuma1,python3",
        "bookworm",
        "/t",
        "http://mirror.example/debian/",
    ]
    assert argv.index("--pdeathsig") < argv.index("unshare") < argv.index("debootstrap")
    assert image.pack_tree("/t", "/a.tar")[-3:] == ["--file=/a.tar", "--directory=/t", "."]


def test_the_key_names_what_is_in_the_image_and_not_where_it_came_from():
    one = image.Recipe("bookworm", "http://a.example/")
    assert one.key == image.Recipe("bookworm", "http://b.example/").key
    assert one.key != image.Recipe("trixie", "http://a.example/").key
    assert one.key != image.Recipe("bookworm", "http://a.example/", ("python3",)).key


def test_containers_are_given_the_environment_its_python_and_the_source():
    mounts = [Path(path) for path in image.engine_mounts()]
    for needed in (Path(sys.executable).parent, Path(image.__file__)):
        assert any(needed.is_relative_to(path) for path in mounts)
    python = Path(sys.executable).resolve()
    assert any(python.is_relative_to(path) for path in [*mounts, Path("/usr")])


def test_phases_are_told_once():
    told: list[str] = []
    follow = image._phases(told.append)
    for line in (
        "I: Retrieving a",
        "I: Validating a",
        "I: Retrieving b",
        "W: odd",
        "I: Base system installed",
        "",
    ):
        follow(line)
    assert told == ["  retrieving packages", "  validating packages"]
