"""`glmspark up` where it must not start: each wrong thing is one clear error, and nothing is left."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glmspark.launch import lock as locks
from glmspark.launch import prepare, up
from glmspark.launch.record import Process, State, home
from glmspark.nodes import processes
from glmspark.nodes.facts.memory import Memory
from tests.unit.cli.commands import Done, Glmspark, toy_recipe
from tests.unit.launch.starts import make_start

GIB = 2**30


@pytest.fixture(autouse=True)
def engine_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit tests need no engine; that it is missing has a test of its own."""
    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda name: object())


def assert_refused(done: Done, state: Path, *texts: str, code: int = 1) -> None:
    """One error block with these texts, and no deployment begun."""
    assert done.code == code, done
    assert done.err.startswith("error: ")
    assert done.err.count("error:") == 1
    assert "Traceback" not in done.err
    for text in texts:
        assert text in done.err
    deployments = state / "deployments"
    left = list(deployments.glob("*/*")) if deployments.exists() else []
    assert left == []


def test_unknown_recipe_names_the_nearest(glmspark: Glmspark, state: Path) -> None:
    assert_refused(glmspark("up", "glm-tinny"), state, "glm-tinny", "did you mean glm-tiny?")


def test_a_recipe_that_cannot_be_run_yet_says_why(glmspark: Glmspark, state: Path) -> None:
    assert_refused(
        glmspark("up", "glm-5.2-4x-dspark-1m"),
        state,
        "glm-5.2-4x-dspark-1m cannot be run yet: attention for a GB10",
        "the DSpark drafter's ring",
        "`glmspark up glm-5.2-4x-dspark-1m --toy`",
    )


def test_a_recipe_for_sparks_does_not_start_on_one_machine(glmspark: Glmspark, state: Path) -> None:
    assert_refused(
        glmspark("up", "glm-5.2-4x-mtp"), state, "is for 4 nodes with a GPU each", "--cluster", "--toy"
    )


def test_at_toy_scale_it_plans_here(glmspark: Glmspark, state: Path) -> None:
    done = glmspark("up", "glm-5.2-4x-mtp", "--toy", "--dry-run", "--json")
    assert done.code == 0, done.err
    assert done.json["name"] == "glm-5.2-4x-mtp-toy"
    assert len(done.json["commands"]) == 4
    argv = done.json["commands"][0]["argv"]
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
    }
    assert argv[argv.index("--load-format") + 1] == "spark"
    assert "--kv-cache-dtype" not in argv
    assert_refused(glmspark("up", "glm-tiny", "--toy"), state, "glm-tiny has no toy counterpart", code=2)


def test_unknown_key_names_its_line_and_the_nearest(glmspark: Glmspark, state: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace('"max_num_seqs"', '"max_num_seq"'))
    assert_refused(
        glmspark("up", recipe),
        state,
        f"{recipe}:15: unknown key 'max_num_seq'",
        "did you mean 'max_num_seqs'?",
    )


def test_wrong_tp_for_the_head_count_names_the_right_ones(
    glmspark: Glmspark, state: Path, tmp_path: Path
) -> None:
    assert_refused(glmspark("up", toy_recipe(tmp_path), "--tp", "3"), state, "TP 3", "heads", "next:")


def test_no_memory_for_it_says_how_much(
    glmspark: Glmspark, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = Memory(4 * GIB, GIB, GIB, 0, 0)
    monkeypatch.setattr(
        prepare, "MEMORY", prepare.MEMORY.__class__("memory", ("cat", "/proc/meminfo"), lambda text: little)
    )
    done = glmspark("up", toy_recipe(tmp_path))
    assert_refused(done, state, "does not fit", "short", "available: 1 GiB", "next:")


def test_a_model_directory_that_is_missing(glmspark: Glmspark, state: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert_refused(glmspark("up", "--model", gone), state, f"--model {gone} does not exist", code=2)


@pytest.mark.parametrize(
    ("model", "code", "texts"),
    [
        ("", 2, ("--model is empty", "leave --model out")),
        (" ", 2, ("--model is empty",)),
        ("/nonexistent", 2, ("--model /nonexistent does not exist", "directory with config.json")),
        ("/etc/passwd", 2, ("--model /etc/passwd is no directory",)),
    ],
)
def test_a_model_that_is_no_directory(
    glmspark: Glmspark, state: Path, model: str, code: int, texts: tuple[str, ...]
) -> None:
    assert_refused(glmspark("up", "--model", model), state, *texts, code=code)


def test_a_truncated_shard_is_named(glmspark: Glmspark, state: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path)
    shard = next((tmp_path / "model").glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    assert_refused(glmspark("up", recipe), state, shard.name)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_names_who_has_it(glmspark: Glmspark, state: Path, tmp_path: Path, address: str) -> None:
    with socket.socket() as sock:
        sock.bind((address, 0))
        sock.listen()
        port = sock.getsockname()[1]
        done = glmspark("up", toy_recipe(tmp_path), "--port", str(port))
    owner = f"port {port} is taken by process {os.getpid()} ("
    assert_refused(done, state, owner, "choose another --port", code=2)


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_a_port_that_does_not_exist(glmspark: Glmspark, state: Path, tmp_path: Path, port: str) -> None:
    assert_refused(glmspark("up", toy_recipe(tmp_path), "--port", port), state, f"port {port} does not exist")


def test_an_address_that_others_reach_needs_a_key(glmspark: Glmspark, state: Path) -> None:
    done = glmspark("up", "--host", "0.0.0.0")
    assert_refused(done, state, "no API key is set", "GLMSPARK_API_KEY", "--insecure", code=2)


def test_an_api_key_that_is_not_usable(
    glmspark: Glmspark, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(glmspark("up", "--api-key-env", "NO_SUCH"), state, "NO_SUCH holds no usable", code=2)
    monkeypatch.setenv("SPACED", "two words")
    assert_refused(glmspark("up", "--api-key-env", "SPACED"), state, "blanks", code=2)
    assert_refused(
        glmspark("up", "--api-key-file", tmp_path / "no"), state, "cannot read the API key", code=2
    )
    done = glmspark("up", "--api-key-file", tmp_path / "no", "--api-key-env", "X")
    assert_refused(done, state, "exclude each other", code=2)


def test_a_variable_that_is_not_set_is_said_to_be_so(glmspark: Glmspark, state: Path) -> None:
    refused = glmspark("up", "--api-key-env", "NOPE")
    assert_refused(refused, state, "NOPE holds no usable API key", "set it (export NOPE=...)", code=2)


def test_an_api_key_file_without_end(glmspark: Glmspark, state: Path) -> None:
    done = glmspark("up", "--api-key-file", "/dev/zero")
    assert_refused(done, state, "/dev/zero is no API key: it is longer than 4096 bytes", code=2)


def test_a_home_directory_that_nobody_has(
    glmspark: Glmspark, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = "there is no home directory for ~no-such-user"
    assert_refused(glmspark("up", "--model", "~no-such-user/m"), state, nobody, code=2)
    assert_refused(glmspark("up", "~no-such-user/r.yaml"), state, f"~no-such-user/r.yaml: {nobody[:8]}")
    monkeypatch.setenv("GLMSPARK_STATE_DIR", "~no-such-user/s")
    done = glmspark("status")
    assert (done.code, nobody in done.err) == (2, True)
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(state))


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid", "x" * 300, "2001:db8::7"])
def test_an_address_that_is_not_this_machine_s(
    glmspark: Glmspark, state: Path, tmp_path: Path, host: str
) -> None:
    done = glmspark("up", toy_recipe(tmp_path), "--host", host, "--insecure")
    assert_refused(done, state, f"cannot listen on {host}:8000: ", "this machine", code=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist"),
        ('{"added_tok', "is not JSON"),
        ('{"x": 1}', "is no tokenizer"),
        ("[]", "is not a JSON object"),
    ],
)
def test_a_model_without_its_tokenizer(
    glmspark: Glmspark, state: Path, tmp_path: Path, text: str | None, said: str
) -> None:
    recipe, file = toy_recipe(tmp_path), tmp_path / "model" / "tokenizer.json"
    file.unlink()
    if text is not None:
        file.write_text(text)
    assert_refused(glmspark("up", recipe), state, f"{file} {said}", "fetch tokenizer.json again")


def test_a_missing_engine_says_how_to_get_it(
    glmspark: Glmspark, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda name: None)
    done = glmspark("up", toy_recipe(tmp_path))
    assert_refused(done, state, "the local engine is not installed", "pip install '.[cpu]'")


def test_a_name_that_is_none(glmspark: Glmspark, state: Path, tmp_path: Path) -> None:
    done = glmspark("up", toy_recipe(tmp_path), "--name", "../other")
    assert_refused(done, state, "'../other' is not a deployment name", code=2)


def test_an_unknown_option_is_a_usage_error(glmspark: Glmspark) -> None:
    done = glmspark("up", "--prot", "1")
    assert done.code == 2
    assert "--prot" in done.err


def test_errors_are_json_with_json(glmspark: Glmspark, state: Path) -> None:
    done = glmspark("up", "no-such-recipe", "--json")
    assert done.code == 1
    assert done.err == ""
    assert done.json["kind"] == "RecipeError"
    assert done.json["next"]


@pytest.mark.parametrize("limit", [0, 3000])
def test_a_full_disk_while_the_record_is_written(state: Path, tmp_path: Path, limit: int) -> None:
    """RLIMIT_FSIZE stands in for the disk: the kernel refuses the write as it does on a full one."""
    recipe = toy_recipe(tmp_path)
    code = (
        "import sys; from glmspark.launch import prepare; import glmspark.cli;"
        "prepare.importlib.util.find_spec = lambda name: object();"
        f"sys.argv = ['glmspark', 'up', {str(recipe)!r}, '--port', '47'];"
        "glmspark.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GLMSPARK_API_KEY": "sk-" + "k" * 40},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    refused = Done(done.returncode, done.stdout, done.stderr)
    assert_refused(refused, state, "cannot make room in", "File too large")
    assert not (state / "deployments" / "toy").exists()


def test_another_up_of_the_same_follows_the_first_one(
    glmspark: Glmspark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy_recipe(tmp_path)
    wanted = prepare.read_request(prepare.Request(recipe=str(recipe), port=18999))
    where, start = home("toy"), make_start("toy", "serves")
    start.recipe, start.plan = wanted.recipe_data(), {"tp": wanted.tp, "pp": wanted.pp}
    start.endpoint.port = 18999
    me = processes.identify(os.getpid())
    assert me is not None
    start.supervisor = Process.of(me)
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            start.turn(State.READY)
            where.write(start)

    monkeypatch.setattr(up.time, "sleep", sleep)
    lock = locks.take(where.lock_file)
    assert lock is not None
    with lock:
        where.write(start)
        other = glmspark("up", recipe, "--port", "18999", "--tp", "1")
        done = glmspark("up", recipe, "--port", "18999")
    assert other.code == 2
    assert "toy already runs, but not as asked: TP2 PP1 instead of TP1 PP1" in other.err
    assert (done.code, done.err) == (0, "")
    assert "starting toy: TP2 PP1" in done.out
    assert "toy already runs, ready for 0." in done.out
    assert len(waited) == 3
    where.record_file.unlink()


def test_a_start_that_nobody_answers_for_is_not_waited_for_for_ever(
    glmspark: Glmspark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_STOP_PATIENCE", 0.2)
    lock = locks.take(home("toy").lock_file)
    assert lock is not None
    with lock:
        done = glmspark("up", toy_recipe(tmp_path))
    assert done.code == 1
    assert "another glmspark works on toy" in done.err


def test_one_that_runs_already_is_fine_and_one_that_differs_is_explained(
    glmspark: Glmspark, tmp_path: Path
) -> None:
    recipe = toy_recipe(tmp_path)
    wanted = prepare.read_request(prepare.Request(recipe=str(recipe), port=18999))
    where, start = home("toy"), make_start("toy", "serves")
    start.recipe, start.plan = wanted.recipe_data(), {"tp": wanted.tp, "pp": wanted.pp}
    start.endpoint.port, start.endpoint.url = 18999, "http://127.0.0.1:18999/v1"
    start.turn(State.READY, at=time.time() - 5)
    lock = locks.take(where.lock_file)
    assert lock is not None
    with lock:
        where.write(start)
        same = glmspark("up", recipe, "--port", "18999")
        machine = glmspark("up", recipe, "--port", "18999", "--json")
        other = glmspark("up", recipe, "--port", "18998", "--tp", "1")
        neighbour = glmspark("up", recipe, "--port", "18999", "--name", "neighbour")
    assert (same.code, same.err) == (0, "")
    assert same.out.startswith("toy already runs, ready for 5.")
    assert "http://127.0.0.1:18999/v1" in same.out
    assert machine.json["already"] is True
    assert other.code == 2
    assert "toy already runs, but not as asked" in other.err
    assert "127.0.0.1:18999 instead of 127.0.0.1:18998" in other.err
    assert neighbour.code == 2
    assert "port 18999 is taken by the deployment toy" in neighbour.err
    where.record_file.unlink()


def test_one_that_runs_with_another_key_is_another(
    glmspark: Glmspark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy_recipe(tmp_path)
    wanted = prepare.read_request(prepare.Request(recipe=str(recipe), port=18999))
    where, start = home("toy"), make_start("toy", "serves")
    start.recipe, start.plan = wanted.recipe_data(), {"tp": wanted.tp, "pp": wanted.pp}
    start.endpoint.port, start.endpoint.needs_key = 18999, True
    start.turn(State.READY)
    lock = locks.take(where.lock_file)
    assert lock is not None
    with lock:
        where.write(start)
        where.write_key("sk-one")
        monkeypatch.setenv("GLMSPARK_API_KEY", "sk-one")
        same = glmspark("up", recipe, "--port", "18999")
        monkeypatch.setenv("GLMSPARK_API_KEY", "sk-two")
        other = glmspark("up", recipe, "--port", "18999")
    assert same.code == 0
    assert other.code == 2
    assert "not as asked: with another API key" in other.err
    assert "sk-" not in other.err
    where.record_file.unlink()


def test_a_dry_run_prints_the_plan_and_starts_nothing(
    glmspark: Glmspark, state: Path, tmp_path: Path
) -> None:
    recipe = toy_recipe(tmp_path)
    done = glmspark("up", recipe, "--dry-run", "--pp", "2")
    assert done.code == 0
    assert "toy: TP1 PP2" in done.out
    assert done.out.count("glmspark.engine.serve") == 2
    machine = glmspark("up", recipe, "--dry-run", "--json").json
    assert machine["warnings"] == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        warned = glmspark("up", recipe, "--dry-run", "--port", port)
        listed = glmspark("up", recipe, "--dry-run", "--port", port, "--json").json["warnings"]
    assert (warned.code, len(listed)) == (0, 1)
    assert f"warning: port {port} is taken by process {os.getpid()}" in warned.err
    assert listed[0].endswith("stop that, or choose another --port")
    assert [command["rank"] for command in machine["commands"]] == list(range(len(machine["commands"])))
    assert machine["plan"]["recipe"] == "toy"
    assert not state.exists()
