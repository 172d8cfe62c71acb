"""Whatever a config.json or a file says, inspect ends with problems, or an error that says what to do."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glmspark.models.errors import CheckpointError
from glmspark.models.inspection import Severity
from glmspark.models.inspection.schemes import PARTS, scheme_of
from glmspark.models.safetensors import TensorInfo
from glmspark.weights.holdings import holdings
from tests.unit.models.test_inspection import look, rules, seed
from tests.unit.models.toys import TOY, architecture

WORDS = st.sampled_from(["full", "F", "re:(", "fp8"])
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["full", "F", "re:(", "fp8"]),
    lambda part: st.lists(part, max_size=5) | st.dictionaries(st.text(max_size=12), part, max_size=5),
    max_leaves=12,
)
KEYS = [
    *TOY,
    "quantization_config",
    "indexer_types",
    "mlp_layer_types",
    "text_config",
    "vision_config",
    "layer_types",
]


QUANTIZATION = st.dictionaries(
    st.sampled_from(["quant_method", "ignore", "config_groups", "quant_algo", "exclude_modules"]),
    JUNK,
    max_size=4,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(KEYS), value=JUNK, quantization=QUANTIZATION)
def test_a_config_that_says_anything_gives_an_error_or_problems(tmp_path_factory, key, value, quantization):
    made = seed()
    made.config[key] = value
    if quantization:
        made.config["quantization_config"] = quantization
    path = made.write(tmp_path_factory.mktemp("fuzz") / "m")
    try:
        rules(look(path))
    except CheckpointError as error:
        advice = error.next
    else:
        return
    assert advice


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_give_an_error_or_problems(tmp_path_factory, data):
    path = seed(True).write(tmp_path_factory.mktemp("fuzz") / "m")
    name = data.draw(st.sampled_from(sorted(one.name for one in path.iterdir())))
    raw = bytearray((path / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, min(len(raw) - 1, 4000)))
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "zero"]))
        if change == "flip":
            raw[at] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del raw[at : at + data.draw(st.integers(1, 200))]
        elif change == "zero":
            raw[at : at + 8] = bytes(8)
        else:
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        if not raw:
            raw = bytearray(b"x")
    (path / name).write_bytes(raw)
    try:
        rules(look(path))
    except CheckpointError as error:
        advice = error.next
    else:
        return
    assert advice


def test_names_do_not_speak_to_the_terminal(tmp_path):
    made = seed()
    made.tensors["model.\x1b]0;owned\x07.weight"] = ("BF16", (1,))
    found = look(made.write(tmp_path / "m"))
    (extra,) = [one for one in found.problems if one.rule == "extra-tensors"]
    assert extra.where == "model.\\x1b]0;owned\\x07.weight"


def test_headers_are_read_as_far_as_there_is_room(tmp_path, monkeypatch):
    """Many shards with a header of the format's 100 MB each would take a hundred gigabytes."""
    path = seed().write(tmp_path / "m")
    sizes = [int.from_bytes(one.read_bytes()[:8], "little") for one in sorted(path.glob("*.safetensors"))]
    monkeypatch.setattr("glmspark.models.inspection.content._MAX_HEADERS", sum(sizes))
    assert "shard-broken" not in rules(look(path))
    monkeypatch.setattr("glmspark.models.inspection.content._MAX_HEADERS", sum(sizes) - 1)
    found = look(path)
    assert [one.seen for one in found.problems if "larger than" in one.seen]
    assert rules(found)["shard-broken"] is Severity.ERROR


INFOS = st.builds(
    lambda dtype, shape: TensorInfo(dtype, tuple(shape), 0, 0),
    st.sampled_from(["U8", "I8", "I32", "F32", "BF16", "F8_E4M3", "F8_E8M0", "BOOL"]),
    st.lists(st.integers(0, 40), max_size=3),
)


@settings(max_examples=60)
@given(
    st.sampled_from(["weight", "weight_packed", "qweight"]),
    INFOS,
    st.dictionaries(st.sampled_from(sorted(part for part in PARTS if "scale" in part)), INFOS, max_size=4),
)
def test_any_parts_have_a_scheme(name, info, scales):
    spec = next(one for one in architecture().specs if len(one.shape) == 2)
    assert scheme_of({name: info, **scales}, spec).label


def test_an_expert_without_a_weight_is_on_no_rank(tmp_path):
    made = seed(True)
    name = next(one for one in made.tensors if ".experts.1." in one and one.endswith("gate_proj.weight"))
    del made.tensors[name]
    found = look(made.write(tmp_path / "m"))
    assert "missing-scales" in rules(found)
    assert len(holdings(found, tp=2, ep=True)) == 2
