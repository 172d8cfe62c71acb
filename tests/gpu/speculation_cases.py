"""What tests/gpu/speculation_cuda.py runs on CUDA: each case has a process of its own, and gives a row."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.gpu.engine_cases import CHECKPOINT, DENSE, made
from tests.gpu.speculation_common import BLOCK, Case, Counts, drafting, turn
from tests.gpu.speculation_slice import depth, published

SHARED = {"gpu_memory_utilization": 0.12, "kv_cache_memory_bytes": 1 << 30}  # cases share a GPU
PACKED = {"VLLM_KV_CACHE_LAYOUT": "BLNHC"}  # blocks outermost: groups of layers with pages of other sizes
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
ASKED = 500


# --- the pipeline -------------------------------------------------------------------------------------------


def pipeline(case: Case, work: Path) -> dict[str, Any]:
    """Capture, train, judge, export: glm-tiny's drafter from nothing, or one that goes on from it."""
    with turn(work):
        return made_drafter(case, work)


def made_drafter(case: Case, work: Path) -> dict[str, Any]:
    import torch

    from glmspark.speculator import evaluation, store, training
    from glmspark.speculator.capture import Capture, run
    from glmspark.speculator.dataset import Dataset
    from glmspark.speculator.prompts import read_prompts
    from glmspark.speculator.shape import Shape
    from tools.glm_tiny.drafter_prompts import lines

    a = case.arguments
    name = a["drafter"]
    target = made(a.get("variant", ""), work)
    asked = work / f"{name}.jsonl"
    asked.write_text("".join(f"{line}\n" for line in lines(a["prompts"], 1)))
    engine = {
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": 256,
        **SHARED,
        **a.get("engine", {}),
    }
    begin = time.time()
    captured = run(
        Capture(target, work / f"{name}-data", (1, 2, 3), 160, engine=engine, dense="variant" in a),
        read_prompts(asked),
    )
    data = Dataset.open(work / f"{name}-data")
    shape = Shape(256, 576, (1, 2, 3), mask_token=543, **a.get("shape", {}))
    start = work / a["start"] if "start" in a else None
    shared = store.read_shared(target)
    before = {}
    if start is not None:
        before = evaluation.evaluate(
            store.read_drafter(start),
            shared,
            data.sequences(held_out=True),
            device="cuda",
            dtype=torch.bfloat16,
        )
    settings = training.Settings(steps=a["steps"], rate=a["rate"], tokens=8192)

    def progress(step: int, parts: dict[str, float]) -> None:
        if step % 200 == 0:
            print(step, parts, flush=True)

    folder = work / f"{name}-training"
    trained = training.train(data, target, folder, shape, settings, start=start, progress=progress)
    from glmspark.speculator.drafter import Drafter

    drafter = Drafter(shape)
    drafter.load_state_dict(training.resume(folder)["drafter"])
    provenance = json.loads((folder / "provenance.json").read_text())
    store.write_drafter(drafter, work / name, "glm-tiny", provenance | {"result": trained})
    found = evaluation.evaluate(
        store.read_drafter(work / name), shared, data.sequences(held_out=True), device="cuda",
        dtype=torch.bfloat16,
    )  # fmt: skip
    for kind, one in found.items():
        was = f", before {before[kind].per_step:.2f}" if before else ""
        print(f"TABLE {name:10} {kind:12} {one.per_step:.2f} a step{was}; by place "
              f"{' '.join(f'{share:.2f}' for share in one.by_place)}", flush=True)  # fmt: skip
    size = (work / name / "model.safetensors").stat().st_size
    note = (
        f"captured {captured['sequences']} sequences, {captured['tokens']} tokens in "
        f"{captured['seconds']:.0f} s; "
        f"trained {trained['steps']} steps in {trained['seconds']:.0f} s; held out: "
        f"{found['all'].per_step:.2f} accepted a step of {BLOCK}"
        + (f" (before {before['all'].per_step:.2f})" if before else "")
        + f"; {size / 1e6:.1f} MB; {time.time() - begin:.0f} s in all"
    )
    good = found["all"].per_step >= (before["all"].per_step if before else 2.0)
    return {"ok": good, "note": note, "accepted": {k: v.to_json() for k, v in found.items()}}


# --- served -------------------------------------------------------------------------------------------------


def start_engine(case: Case, work: Path, **more: Any) -> Any:
    from vllm import LLM

    a = dict(case.arguments)
    arguments = {"max_model_len": 8192, "dtype": "bfloat16", "max_num_seqs": 64, "disable_log_stats": False}
    wait_for_drafter(case, work)
    arguments |= SHARED | a.pop("engine", {}) | more
    if "draft" in a:
        arguments["speculative_config"] = drafting(work, **a["draft"])
    return LLM(str(CHECKPOINT), **arguments)


def wait_for_drafter(case: Case, work: Path) -> None:
    """vLLM has been imported; what is still being trained is waited for."""
    from vllm import LLM  # noqa: F401 - takes longer than anything else before the engine

    while "draft" in case.arguments and not (work / "drafter/config.json").exists():
        if (work / "failed").exists():
            raise RuntimeError("there is no drafter to serve with")
        time.sleep(0.2)


def questions(engine: Any) -> list[tuple[str, list[int]]]:
    """Prompts that no drafter was trained on: (kind, tokens)."""
    from tools.glm_tiny.drafter_prompts import lines

    tokenizer = engine.get_tokenizer()
    found = []
    for line in lines(ASKED, 2):
        value = json.loads(line)
        ids = tokenizer.apply_chat_template(
            value["messages"], tools=value.get("tools"), tokenize=True, add_generation_prompt=True,
            return_dict=False, **value.get("template", {}),
        )  # fmt: skip
        found.append((value["kind"], [int(token) for token in ids]))
    return found


def served(case: Case, work: Path) -> dict[str, Any]:
    """Held-out prompts answered greedily, by kind and at several depths; and how fast."""
    from vllm import SamplingParams

    from tools.glm_tiny.prompts import needles

    begin, label = time.time(), case.arguments["label"]
    engine = start_engine(case, work)
    loaded = time.time() - begin
    sampling = SamplingParams(temperature=0, max_tokens=160)
    asked = questions(engine)
    kinds: dict[str, list[int]] = defaultdict(list)
    for number, (kind, _) in enumerate(asked):
        kinds[kind].append(number)
    tokens: list[list[int]] = [[] for _ in asked]
    everything = Counts(engine)
    tokenizer = engine.get_tokenizer()

    def ask(ids: list[list[int]]) -> list[list[int]]:
        outputs = engine.generate([{"prompt_token_ids": i} for i in ids], sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def say(what: str, counts: Counts) -> None:
        steps, accepted, places = counts.look()
        if steps:
            shares = " ".join(f"{share:.2f}" for share in places)
            print(
                f"TABLE served {label:14} {what:14} {accepted / steps:.2f} a step; by place {shares}",
                flush=True,
            )

    with turn(work):
        for kind, numbers in sorted(kinds.items()):
            counts = Counts(engine)
            for number, found in zip(numbers, ask([asked[n][1] for n in numbers]), strict=True):
                tokens[number] = found
            say(kind, counts)
        say("all", everything)
        for depth in case.arguments.get("depths", (128, 1000, 4000, 7000)):
            group = needles(depth, 24)
            ids = [
                tokenizer.apply_chat_template(
                    p.messages, tokenize=True, add_generation_prompt=True, return_dict=False
                )
                for p in group.prompts
            ]
            counts = Counts(engine)
            tokens += ask(ids)
            say(f"needle {depth}", counts)
    steps, accepted, _ = everything.look()
    note = f"start {loaded:.0f} s"
    if steps:
        note += f"; {accepted / steps:.2f} accepted a step"
    if case.arguments.get("timed", True):
        with turn(work, alone=True):
            ask([asked[0][1]])
            # Within one kind acceptance is much the same: kinds show what drafting pays at which acceptance.
            for kind in ("counting", "copies", "sums", "story", "unknown"):
                some = [asked[n][1] for n in kinds[kind][:8]]
                counts, start = Counts(engine), time.time()
                count = sum(len(ask([ids])[0]) for ids in some)
                rate = count / (time.time() - start)
                steps, accepted, _ = counts.look()
                said = f" at {accepted / steps:.2f} a step" if steps else ""
                print(f"TABLE speed  {label:14} {kind:14} {rate:.0f} tokens/s alone{said}", flush=True)
            start = time.time()
            count = sum(map(len, ask([ids for _, ids in asked])))
            note += f"; {count / (time.time() - start):.0f} tokens/s for {ASKED} at once"
    whole = all(tokens)
    return {"ok": whole and (steps > 0) == ("draft" in case.arguments), "note": note, "tokens": tokens}


def policy(case: Case, work: Path) -> dict[str, Any]:
    """Five kinds of text, one request at a time: every fixed number of drafts, and the policy's choice."""
    from vllm import SamplingParams

    begin = time.time()
    engine = start_engine(case, work, max_num_seqs=16)
    loaded = time.time() - begin
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    chooser = scheduler.dynamic_sd_lookup
    if not hasattr(chooser, "observe"):
        return {"ok": False, "note": f"there is no policy but {type(chooser).__name__}"}
    sampling = SamplingParams(temperature=0, max_tokens=160)
    asked: dict[str, list[list[int]]] = defaultdict(list)
    for kind, ids in questions(engine):
        asked[kind].append(ids)

    def speed(kind: str, count: int) -> float:
        start, total = time.time(), 0
        for ids in (asked[kind] * count)[:count]:
            (output,) = engine.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
            total += len(output.outputs[0].token_ids)
        return total / (time.time() - start)

    shares = []
    with turn(work, alone=True):
        scheduler.dynamic_sd_lookup = [BLOCK] * 300
        speed("counting", 4)
        for kind in ("counting", "copies", "sums", "story", "unknown"):
            fixed = {}
            for number in chooser.choices:
                scheduler.dynamic_sd_lookup = [number] * 300
                fixed[number] = speed(kind, 8)
            scheduler.dynamic_sd_lookup = chooser
            first, then = speed(kind, 10), speed(kind, 16)
            best = max(fixed, key=lambda number: fixed[number])
            shares.append(then / fixed[best])
            numbers = ", ".join(f"{number}: {rate:.0f}" for number, rate in fixed.items())
            told = f"{then / fixed[best]:.3f} of the best, {then / fixed[0]:.2f} of none"
            print(
                f"TABLE policy {kind:10} {numbers}; policy {first:.0f}, then {then:.0f}: {told}", flush=True
            )
    print(f"TABLE policy knows {json.dumps(chooser.summary())}", flush=True)
    note = f"start {loaded:.0f} s; at least {min(shares):.3f} of the best fixed number of drafts"
    return {"ok": min(shares) >= 0.9, "note": note}


def sampled(case: Case, work: Path) -> dict[str, Any]:
    """Tokens sampled with drafts against the target's own distribution: chi-square at three temperatures."""
    import random

    import torch
    from vllm import SamplingParams

    engine = start_engine(case, work, max_logprobs=600, max_num_seqs=256)
    samples, width, worst, notes = 3000, 576, 1.0, []
    confused = 0.0

    def distributions(prefixes: list[list[int]]) -> torch.Tensor:
        """The target's log-probabilities [prefixes, tokens] of what follows, by prefill."""
        once = SamplingParams(temperature=0, max_tokens=1, logprobs=width, detokenize=False)
        outputs = engine.generate([{"prompt_token_ids": p} for p in prefixes], once, use_tqdm=False)
        found = torch.full((len(prefixes), width), -torch.inf, dtype=torch.float64)
        for row, output in enumerate(outputs):
            for token, value in output.outputs[0].logprobs[0].items():
                found[row, token] = value.logprob
        return found

    def p_value(seen: torch.Tensor, expected: torch.Tensor) -> float:
        """Chi-square's, cells of fewer than 5 expected put together."""
        small = expected < 5
        cells = [(float(s), float(e)) for s, e in zip(seen[~small], expected[~small], strict=True)]
        cells.append((float(seen[small].sum()), float(expected[small].sum())))
        statistic = sum((s - e) ** 2 / e for s, e in cells if e > 1e-9)
        freedom = sum(e > 1e-9 for _, e in cells) - 1
        half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
        return float(torch.special.gammaincc(half[0], half[1]))

    with turn(work):
        counts = Counts(engine)
        for seed in (3, 8):  # prompts after which glm-tiny is in doubt (1.5-4 nats), which is rare
            prompt = [random.Random(seed).randrange(5, 500) for _ in range(24)]
            seen: dict[float, Any] = {}
            for temperature in (0.7, 1.0, 1.6):
                many = SamplingParams(
                    temperature=temperature, max_tokens=4, n=samples, ignore_eos=True, detokenize=False
                )
                (output,) = engine.generate([{"prompt_token_ids": prompt}], many, use_tqdm=False)
                seen[temperature] = [list(o.token_ids) for o in output.outputs]
            firsts = sorted({row[0] for rows in seen.values() for row in rows})
            following = distributions([[*prompt, token] for token in firsts])
            place = {token: n for n, token in enumerate(firsts)}
            for temperature, rows in seen.items():
                # The second token is the first that drafts take part in. Given the firsts as they were drawn,
                # it has the target's distributions behind them, mixed.
                drawn = torch.bincount(torch.tensor([place[row[0]] for row in rows]), minlength=len(firsts))
                second = torch.bincount(torch.tensor([row[1] for row in rows]), minlength=width).double()
                for assumed in (0.7, 1.0, 1.6):
                    expected = drawn.double() @ (following / assumed).softmax(-1)
                    value = p_value(second, expected)
                    if assumed == temperature:
                        worst = min(worst, value)
                        notes.append(f"{temperature}: {value:.3f}")
                    else:
                        confused = max(confused, value)
            # The third, behind pairs: at one temperature, where the pairs are few enough to be asked for.
            rows = seen[0.7]
            pairs = sorted({(row[0], row[1]) for row in rows})[:1500]
            behind = {pair: n for n, pair in enumerate(pairs)}
            following = distributions([[*prompt, *pair] for pair in pairs])
            kept = [row for row in rows if (row[0], row[1]) in behind]
            drawn = torch.bincount(
                torch.tensor([behind[row[0], row[1]] for row in kept]), minlength=len(pairs)
            )
            third = torch.bincount(torch.tensor([row[2] for row in kept]), minlength=width).double()
            value = p_value(third, drawn.double() @ (following / 0.7).softmax(-1))
            worst = min(worst, value)
            notes.append(f"0.7 third: {value:.3f}")
        steps, accepted, _ = counts.look()
    note = (
        f"p by temperature {', '.join(notes)}; of another temperature at most {confused:.0e}; "
        f"{accepted / max(1, steps):.2f} accepted a step"
    )
    # Eight tests: the least of their p is below 0.001 once in 125 runs of a right sampler.
    return {"ok": worst > 0.001 and confused < 1e-4 and accepted > 0, "note": note}


TRAINED = "train, glm-tiny, DSA"
EAGER = {"enforce_eager": True}

CASES: dict[str, Case] = {
    TRAINED: Case(pipeline, arguments={"drafter": "drafter", "prompts": 4000, "steps": 3000, "rate": 2e-3}),
    "plain, DSA": Case(served, {}, {"label": "plain, DSA"}),
    "DSpark, DSA": Case(
        served,
        PACKED,
        {"label": "DSpark, DSA", "timed": False, "draft": {}},
        same_as="plain, DSA",
    ),
    "policy, DSpark, DSA": Case(
        policy, PACKED | IN_PROCESS | {"GLMSPARK_DRAFT_POLICY": "auto"}, {"draft": {}}
    ),
    "sampling, drafts by argmax": Case(sampled, {}, {"engine": EAGER, "draft": {}}),
    # Up to 2,048 tokens dense attention is DSA: the needles beyond are left out.
    "DSpark, dense, chunks of 128": Case(
        served,
        DENSE,
        {
            "label": "DSpark, dense",
            "timed": False,
            "depths": (128, 1000),
            "engine": {**EAGER, "max_model_len": 2048, "max_num_batched_tokens": 128, "max_num_seqs": 8},
            "draft": {},
        },
        same_as="plain, DSA",
    ),
    "fine-tuning on NVFP4's states": Case(
        pipeline,
        DENSE,
        {
            "drafter": "tuned",
            "start": "drafter",
            "variant": "glm-tiny-nvfp4",
            "engine": {"moe_backend": "marlin"},
            "prompts": 2500,
            "steps": 800,
            "rate": 5e-4,
        },
        needs=TRAINED,
    ),
    "sampling, drafts sampled": Case(
        sampled,
        PACKED,
        {"engine": EAGER, "draft": {"draft_sample_method": "probabilistic"}},
        needs=TRAINED,
    ),
    "GLM-5.2's drafter, made-up weights": Case(published, asked=True),
    "depth, no window": Case(depth, IN_PROCESS, {"label": "whole", "window": None}, asked=True),
    "depth, window, blocks outermost": Case(
        depth, IN_PROCESS | PACKED, {"label": "packed", "window": 1024}, asked=True
    ),
}
