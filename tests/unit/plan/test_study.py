"""A recipe studied before anything is started: fit, refusal, largest context, search, changes, lessons."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glmspark.config import load_recipe, recipe_names
from glmspark.config.recipe import Recipe
from glmspark.models.outline import Outline, outline_published
from glmspark.models.published import find
from glmspark.plan.changes import another_node, cheapest
from glmspark.plan.errors import PlanError
from glmspark.plan.learned import apply_lessons, lesson_of, load_lessons, read_log, save_lesson
from glmspark.plan.notes import notes_of
from glmspark.plan.plan import Memory
from glmspark.plan.search import AIMS, search
from glmspark.plan.settings import Asked, apply, parse_spec
from glmspark.plan.site import Site, link_named, recipe_link, stock_site
from glmspark.plan.speed.links import Link
from glmspark.plan.startable import refused
from glmspark.plan.study import Study, refusal, study, to_json
from glmspark.plan.thresholds import thresholds

GIB = 2**30
LARGE = [name for name in recipe_names() if name.startswith("glm-5")]


@cache
def known(name: str) -> tuple[Recipe, Outline]:
    recipe = load_recipe(name)
    published = find(recipe.model.source.name)
    assert published is not None, recipe.model.source
    return recipe, outline_published(recipe.model.source.name, published)


def site(recipe: Recipe, count: int | None = None) -> Site:
    return stock_site(count or recipe.layout.world, recipe_link(recipe))


def planned(name: str, **asked: int) -> Study:
    recipe, outline = known(name)
    changed = apply(recipe, Asked(**asked))
    return study(changed, outline, site(changed), texts=())


@pytest.mark.parametrize("name", LARGE)
def test_every_recipe_for_sparks_is_known_and_fits_stock_ones(name):
    recipe, outline = known(name)
    if recipe.layout.tp == 3:
        with pytest.raises(PlanError, match="does not divide 64 attention heads"):
            study(recipe, outline, site(recipe))
        return
    found = study(recipe, outline, site(recipe))
    assert found.fits, refusal(found)
    assert found.tokens >= recipe.engine.max_model_len
    assert found.context >= recipe.engine.max_model_len
    for rank in found.ranks:
        memory = rank.memory
        assert sum(memory.by_class.values()) == memory.weights
        assert memory.needed >= max(memory.total, memory.load)
    assert all(0 < one.share < 1 for one in found.speeds.values())
    assert notes_of(found)
    assert to_json(found)["fits"]


def test_a_refusal_says_by_how_much_and_the_way_out():
    found = planned("glm-5.2-4x-mtp", context=400_000, kv_cache=22 * GIB)
    error = refusal(found)
    assert error is not None
    assert "GiB short on rank 0" in error.message
    assert "max_model_len <= " in error.message
    assert "DCP2" in error.message
    assert error.host == "spark1"
    again = planned("glm-5.2-4x-mtp", context=found.context, kv_cache=found.ranks[0].memory.kv_cache)
    assert again.context >= found.context - 64


def test_what_it_says_fits_does_fit():
    recipe, outline = known("glm-5.2-4x-mtp")
    found = planned("glm-5.2-4x-mtp")
    changed = apply(recipe, Asked(context=found.context))
    need = int(found.token.total * found.context)
    assert study(apply(changed, Asked(kv_cache=need)), outline, site(recipe), texts=()).fits
    room = need + int(found.token.total * 8192)
    more = apply(recipe, Asked(context=found.context + 4096, kv_cache=room))
    assert not study(more, outline, site(recipe), texts=()).fits


def test_fewer_requests_are_a_way_out():
    recipe, outline = known("glm-5.2-4x-mtp")
    changed = apply(recipe, Asked(concurrency=4096))
    error = refusal(study(changed, outline, site(changed), texts=()))
    assert error is not None
    most = int(error.message.rpartition("max_num_seqs <= ")[2])
    for count, fits in ((most, True), (most + 1, False)):
        again = apply(changed, Asked(concurrency=count))
        assert study(again, outline, site(changed), texts=()).fits is fits


def test_a_stage_of_linear_attention_alone_holds_states_alone():
    """45 layers on 23 stages, an MLA layer every fourth: most stages have none."""
    recipe, outline = known("glm-5.3-flash-nvfp4-4x-tp4")
    changed = apply(recipe, Asked(tp=1, pp=23))
    found = study(changed, outline, site(changed), texts=())
    assert found.tokens >= changed.engine.max_model_len
    with pytest.raises(PlanError, match="does not hold one request"):
        study(apply(changed, Asked(kv_cache=2**20)), outline, site(changed), texts=())


def test_no_context_is_advised_that_holds_nothing():
    recipe, outline = known("glm-5.2-4x-mtp")
    with pytest.raises(PlanError, match="does not hold one request") as caught:
        study(apply(recipe, Asked(kv_cache=2**20)), outline, site(recipe), texts=())
    assert "max_model_len" not in str(caught.value.next)


def test_what_is_advised_is_nothing_that_up_refuses():
    recipe, outline = known("glm-5.2-4x-mtp")
    found = study(recipe, outline, site(recipe))
    assert refused(recipe, outline, "cuda") is None
    assert refused(apply(recipe, Asked(dcp=4)), outline, "cuda") is not None
    for change in cheapest(found, streams=1, depth=1000, text="code"):
        assert "DCP" not in change.what
    spread = apply(recipe, Asked(dcp=4))
    again = study(spread, outline, site(recipe))
    assert any("DCP" in one.what for one in cheapest(again, streams=1, depth=1000, text="code", count=9))


def test_a_setting_in_the_environment_that_is_no_number_is_vllms_default():
    recipe, outline = known("glm-5.2-4x-mtp")
    env = {**recipe.engine.env, "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "lots"}
    changed = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"env": env})})
    plain = study(recipe, outline, site(recipe), texts=())
    assert study(changed, outline, site(recipe), texts=()).ranks == plain.ranks


def test_mtp_beside_bf16_attention_does_not_fit_where_it_thrashed_nodes():
    """nvidia/GLM-5.2-NVFP4 at TP4 was served without MTP; with it four nodes had to be power-cycled."""
    recipe, _ = known("glm-5.2-4x-mtp")
    published = find("nvidia/GLM-5.2-NVFP4")
    assert published is not None
    outline = outline_published("nvidia/GLM-5.2-NVFP4", published)
    small = Asked(context=32768, kv_cache=2 * GIB)
    without = apply(apply(recipe, small), Asked(spec=("", 0)))
    assert study(without, outline, site(recipe), texts=()).fits
    assert not study(apply(recipe, small), outline, site(recipe), texts=()).fits


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Asked(tp=5), "does not divide 64 attention heads"),
        (Asked(tp=4, dcp=3), "DCP 3 does not divide TP 4"),
        (Asked(tp=1, pp=79), "PP 79 is not possible with 78 layers"),
        (Asked(tp=4, pp=2), "no indexer of its own"),
        (Asked(spec=("dflash", 7)), "names no checkpoint for a dflash drafter"),
        (Asked(kv_cache=2**20), "does not hold one request"),
    ],
)
def test_what_cannot_be_planned_is_named(asked, says):
    recipe, outline = known("glm-5.2-4x-mtp")
    with pytest.raises(PlanError, match=says):
        study(apply(recipe, asked), outline, site(recipe, 128), texts=())


def test_too_few_nodes():
    recipe, outline = known("glm-5.2-4x-mtp")
    with pytest.raises(PlanError, match="TP4 takes 4 nodes, and there are 3"):
        study(recipe, outline, site(recipe, 3))


@settings(max_examples=25)
@given(
    st.sampled_from(["glm-5.2-4x-mtp", "glm-5.3-flash-nvfp4-4x-mtp"]),
    st.integers(2048, 500_000),
    st.sampled_from([(2, 1), (4, 1), (1, 3)]),
)
def test_more_nodes_never_hold_more_and_more_context_never_needs_less(name, context, layout):
    recipe, outline = known(name)
    dense = recipe.model_copy(
        update={"engine": recipe.engine.model_copy(update={"dense_attention": layout[1] > 1})}
    )

    def most(tp: int, pp: int, length: int) -> int:
        asked = Asked(tp=tp, pp=pp, context=length, kv_cache=200 * GIB)
        found = study(apply(dense, asked), outline, site(recipe, 64), texts=())
        return max(rank.memory.needed for rank in found.ranks)

    base = most(*layout, context)
    assert most(layout[0] * 2, layout[1], context) <= base * 1.001 + GIB  # NCCL's buffers grow with ranks
    assert most(*layout, context + 4096) >= base


def test_search_finds_the_best_first_and_in_time():
    recipe, outline = known("glm-5.2-4x-mtp")
    begin = time.process_time()
    found = search(recipe, outline, site(recipe, 8), aim="stream", text="prose")
    assert time.process_time() - begin < 5
    assert [one.stream for one in found] == sorted((one.stream for one in found), reverse=True)
    assert all(one.study.fits and one.study.context > 0 for one in found)
    layouts = {(one.study.recipe.layout.tp, one.study.recipe.layout.pp) for one in found}
    assert (4, 1) in layouts
    assert (8, 1) in layouts
    assert (2, 1) not in layouts  # 190 GiB a rank
    for aim in AIMS:
        best = search(recipe, outline, site(recipe, 4), aim=aim, text="prose")[0]
        assert best.study.recipe.layout.world <= 4
        assert best.to_json()["largest_context"] > 0


def test_what_to_change():
    recipe, outline = known("glm-5.3-flash-nvfp4-4x-tp4")
    found = study(recipe, outline, site(recipe))
    changes = cheapest(found, streams=1, depth=1000, text="prose")
    assert changes[0].what == "RDMA instead of sockets"
    assert changes[0].gain > 2
    assert {one.what for one in changes} >= {"CUDA graphs instead of eager"}
    assert [one.gain for one in changes] == sorted((one.gain for one in changes), reverse=True)
    assert len(changes) <= 3
    reap, pruned = known("glm-5.2-reap-469b-3x-pp")
    more = another_node(study(reap, pruned, site(reap)), streams=1, depth=1000, text="prose")
    assert more is not None
    assert more.what.startswith("1 more node: ")
    assert more.to_json()["after"] > 0


def test_parse_spec_and_link():
    assert parse_spec("mtp:3") == ("mtp", 3)
    assert parse_spec("none") == ("", 0)
    assert link_named("tcp:1") == Link("tcp", 1)
    assert link_named("rdma").kind == "roce"
    for wrong in ("mtp:0", "mtp:x", "eagle9", "none:2", "", "mtp:65", "mtp:0064999", "mtp:" + "9" * 5000):
        with pytest.raises(PlanError):
            parse_spec(wrong)
    for wrong in ("wifi", "tcp:0", "tcp:fast", "tcp:nan", ""):
        with pytest.raises(PlanError):
            link_named(wrong)


LOG = """\
(Worker_TP0) INFO [model_runner.py:425] Model loading took 98.07 GiB memory and 281.5 seconds
(EngineCore) INFO [kv_cache_utils.py:2327] GPU KV cache size: 150,016 tokens
(Worker_TP0) INFO [model_runner.py:1164] Graph capturing finished in 21 secs, took 1.01 GiB
"""


def test_lessons_of_a_start(tmp_path, monkeypatch):
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path))
    said = read_log(LOG)
    assert (said.weights, said.tokens) == (int(98.07 * GIB), 150_016)
    recipe, outline = known("glm-5.2-4x-mtp")
    found = study(recipe, outline, site(recipe), texts=())
    memory = found.ranks[0].memory
    plan = {"ranks": [{"memory": memory.model_dump()}], "kv_tokens": found.tokens, "platform": "cuda"}
    lesson = lesson_of(recipe.name, plan, [LOG])
    assert lesson is not None
    assert lesson.weights == pytest.approx(98.07 * GIB / memory.weights)
    save_lesson(lesson)
    assert load_lessons() == [lesson]
    learned = apply_lessons(found, load_lessons())
    assert learned.ranks[0].memory.weights == pytest.approx(98.07 * GIB, rel=1e-6)
    assert learned.tokens == pytest.approx(150_016, abs=2)
    assert learned.shortest.left < found.shortest.left
    assert learned.context < found.context
    assert apply_lessons(found, []) == found
    assert lesson_of(recipe.name, plan, ["nothing of the kind"]) is None
    words = '{"lessons": [{"recipe": "a", "platform": "cuda", "weights": "x", "graphs": 1, "tokens": 1}]}'
    for broken in ("nonsense", words):
        (tmp_path / "learned.json").write_text(broken)
        assert load_lessons() == []


@given(st.text(), st.from_regex(r"[0-9.,]{1,12}", fullmatch=True))
@example("", "1.2.3")
@example("", ",")
@example("", "9" * 5000)
def test_any_log_can_be_read(text, number):
    read_log(text)
    read_log(f"Model loading took {number} GiB\nKV cache size: {number} tokens")


def test_thresholds_for_the_guard():
    found = planned("glm-5.3-flash-nvfp4-4x-mtp")
    said = thresholds(found.ranks[0].memory, 121 * GIB)
    assert said["free_low_bytes"] == pytest.approx(3 * GIB, rel=0.01)
    assert said["free_critical_bytes"] == said["free_low_bytes"] // 2
    assert said["weights_bytes"] + said["kv_bytes"] + said["engine_bytes"] == found.ranks[0].memory.total
    full = planned("glm-5.2-4x-dspark-1m")
    assert thresholds(full.ranks[0].memory, 121 * GIB)["free_low_bytes"] >= GIB * 0.9
    tiny = thresholds(Memory(weights=1, kv_cache=1, scratch=1, process=1, needed=4), 2 * GIB)
    assert 0 < tiny["free_critical_bytes"] < tiny["free_low_bytes"] < GIB


def test_a_lab_shares_its_machine():
    recipe, outline = known("glm-5.3-flash-nvfp4-4x-mtp")
    alone = site(recipe)
    shared = replace(alone, seats=tuple(replace(seat, board="one") for seat in alone.seats))
    assert study(recipe, outline, alone, texts=()).fits
    assert not study(recipe, outline, shared, texts=()).fits
