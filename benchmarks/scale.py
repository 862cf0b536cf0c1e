"""What a round costs against users and model size, and what that means for 100 million users.

    python benchmarks/scale.py [--users 10000 ...] [--out benchmarks/results]
    python benchmarks/scale.py --page    # write the tables of docs/scale.md from the results

**Users.** What the first process does on the host in a round, besides clipping: it draws 1,000
users (expected), and now and then it lends entities anew or divides their shares. Each size runs in
a process of its own, so that one's peak memory is not another's.

**Models.** A private step with adapters beside the same plain step, on CPU threads, for Llama
models of growing width (random weights). What depends on the processes is in `distributed.py`.

**Estimate.** 100 million users and a model of 7 billion weights, from these rows and from committed
results of other benchmarks. Every factor says where it is from: measured, assumed, or extrapolated.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
START, END = "<!-- from benchmarks/results: python benchmarks/scale.py --page -->", "<!-- end -->"
USERS = (10_000, 100_000, 1_000_000)
EACH, MENTIONED = 10, 1.2  # sentences of a user, mentions a sentence
DRAWN, ROUNDS = 1_000, 12
WIDTHS = ((256, 4), (512, 8), (1024, 12))  # of models, and their layers

# The worked estimate. Llama-2-7B's shape (Touvron et al. 2023).
LARGE = {
    "users": 100_000_000,
    "sentences_of_a_user": 30,
    "mentions_a_sentence": MENTIONED,
    "tokens_a_sentence": 24,
    "users_a_round": 16_384,
    "sentences_of_a_user_a_round": 16,
    "rounds": 2_000,
    "entity_share": 0.3,
    "epsilon": 2.0,
    "delta": 1e-9,
    "gpus": 64,
    "rank": 16,
}
WIDTH, INNER, LAYERS, VOCABULARY = 4096, 11008, 32, 32_000
SMOLLM2_WEIGHTS = 134_515_008
H200_PEAK = 790e12  # bf16 operations a second
NETWORK = 25e9  # bytes a second between machines: 200 Gbit/s


# --- users ---------------------------------------------------------------------------------------


def host(users: int) -> dict[str, Any]:
    """Seconds and memory of the host's part of a round, at one size."""
    from uedp.incidence import Incidence
    from uedp.mechanism.fair import Sharing, fair_shares
    from uedp.mechanism.lending import lend
    from uedp.mechanism.sampling import Sampling, draw
    from uedp.methods.rotation import lending_schedule

    rng = np.random.default_rng(0)
    sentences, entities = EACH * users, 3 * users
    mentions = int(MENTIONED * sentences)
    # log-uniform ranks: a few entities everywhere, most of them rare
    entity = (np.exp(rng.random(mentions) * np.log(entities)) - 1).astype(np.int32)
    owner = rng.integers(0, users, sentences, dtype=np.int32)
    sentence = rng.integers(0, sentences, mentions, dtype=np.int64)
    began = time.perf_counter()
    incidence = Incidence.build(owner, sentence, entity, users, entities)
    built = time.perf_counter() - began
    del entity, owner, sentence
    sampling = Sampling(DRAWN / users, per_entity=1, per_user=16)
    schedule = lending_schedule(lend, incidence, seed=0)
    seconds = []
    for key in range(ROUNDS):
        began = time.perf_counter()
        draw(incidence, sampling, rng, key, schedule.at(key, key))
        seconds.append(time.perf_counter() - began)
    lending = seconds[0]
    began = time.perf_counter()
    fair_shares(incidence, Sharing(0.3, 16), 0)
    shares = time.perf_counter() - began
    return {
        "users": users,
        "sentences": sentences,
        "mentions": mentions,
        "build_seconds": built,
        "round_with_lending_seconds": lending,
        "round_seconds": median(seconds[1:]),
        "mean_round_seconds": mean(seconds),
        "fair_shares_seconds": shares,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


# --- models --------------------------------------------------------------------------------------


def of_model(width: int, layers: int, repeats: int = 5) -> dict[str, Any]:
    """Seconds of a private and of a plain step with adapters of rank 8."""
    import peft
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.clip import timed
    from uedp.mechanism.clip import Engine

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=2_048,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        tie_word_embeddings=True,
        use_cache=False,
    )
    config = peft.LoraConfig(r=8, target_modules="all-linear")
    model: Any = peft.get_peft_model(LlamaForCausalLM(shape), config).train()
    users, each, tokens = 4, 4, 24
    ids = torch.randint(1, 2_048, (users * each, tokens))
    owners = [user for user in range(users) for _ in range(each)]
    engine = Engine(model)

    def losses(ids: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=ids).logits[:, :-1]
        found = torch.nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none")
        return found.mean(1)

    def plain() -> None:
        losses(ids).sum().backward()
        model.zero_grad(set_to_none=True)

    def private() -> None:
        clips = torch.full((len(owners),), 0.2)
        engine.clipped_sum(lambda order: losses(ids[list(order)]), owners, clips, 1.0)

    seconds, _ = timed({"plain": plain, "private": private}, "cpu", repeats)
    weights = sum(p.numel() for p in model.parameters())
    return {
        "width": width,
        "layers": layers,
        "weights": weights,
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "tokens": users * each * tokens,
        "plain_seconds": seconds["plain"],
        "private_seconds": seconds["private"],
        "ratio": seconds["plain"] / seconds["private"],
    }


# --- the estimate --------------------------------------------------------------------------------


def estimate(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The factors of the worked estimate, and where each is from."""
    from uedp.accounting.calibrate import calibrate_entity_level

    given = LARGE
    rate = given["users_a_round"] / given["users"]
    share, epsilon, delta = given["entity_share"], given["epsilon"], given["delta"]
    began = time.perf_counter()
    plan = calibrate_entity_level(
        epsilon, delta, rate, rounds=int(given["rounds"]), entity_share=share
    )
    calibrated = time.perf_counter() - began
    tokens = (
        given["users_a_round"] * given["sentences_of_a_user_a_round"] * given["tokens_a_sentence"]
    )
    in_layers = LAYERS * (4 * WIDTH**2 + 3 * WIDTH * INNER)
    weights = in_layers + 2 * VOCABULARY * WIDTH
    adapters = LAYERS * given["rank"] * (4 * 2 * WIDTH + 3 * (WIDTH + INNER))
    per_token = 4 * (in_layers + VOCABULARY * WIDTH)  # forward, and backward through frozen weights
    h200 = json.loads((RESULTS / "train_step_h200_lora.json").read_text())
    speed = _tokens_a_second(h200)
    reached = speed * 4 * SMOLLM2_WEIGHTS
    one = tokens * per_token / reached
    smallest, largest = rows[0], rows[-1]
    added = largest["mentions"] - smallest["mentions"]  # above what every process takes
    per_mention = (largest["peak_bytes"] - smallest["peak_bytes"]) / added
    mentions = given["users"] * given["sentences_of_a_user"] * given["mentions_a_sentence"]
    lending = largest["round_with_lending_seconds"] / largest["mentions"] * mentions
    exchanged = 2 * 4 * adapters / NETWORK  # weights out, sums back, in float32
    gpus = given["gpus"]
    noise = json.loads((RESULTS / "noise_h200.json").read_text())["5000000"]["kernel"] / 1e3
    factors = [
        ("noise multiplier", plan.noise, "", "computed by the accountant"),
        ("seconds to calibrate it", calibrated, "s", "measured"),
        ("expected users a round", given["users_a_round"], "", "assumed"),
        (
            "noise against one user's clip, a round",
            plan.noise / given["users_a_round"],
            "",
            "computed",
        ),
        ("tokens a round", tokens, "", "assumed"),
        ("weights", weights, "", "computed from the shape"),
        ("trained weights (rank 16)", adapters, "", "computed from the shape"),
        ("operations a token", per_token, "", "computed from the shape"),
        ("H200, SmolLM2, private round", speed, "tokens/s", "measured, train_step_h200_lora.json"),
        ("operations a second it reaches", reached, "", "measured, the same"),
        ("of the card's peak", reached / H200_PEAK, "", "computed"),
        ("a round on one H200", one, "s", "extrapolated: the same operations a second"),
        (f"a round on {gpus}", one / gpus, "s", "extrapolated: users divide evenly"),
        ("exchange of adapters", exchanged, "s", "assumed: 200 Gbit/s"),
        ("noise for all adapters", noise * adapters / 5e6, "s", "extrapolated, noise_h200.json"),
        (
            f"all {given['rounds']:,} rounds",
            given["rounds"] * one / gpus / 3600,
            "h",
            "extrapolated",
        ),
        ("frozen weights, float32", 4 * weights / 1e9, "GB", "computed"),
        (
            "frozen weights, 4 bit",
            (in_layers * 4.5 / 8 + 8 * VOCABULARY * WIDTH) / 1e9,
            "GB",
            "computed",
        ),
        ("incidence in the first process", per_mention * mentions / 1e9, "GB", "extrapolated"),
        ("lending anew", lending, "s", "extrapolated"),
    ]
    return [
        {"factor": name, "value": float(value), "unit": unit, "source": source}
        for name, value, unit, source in factors
    ]


def _tokens_a_second(result: dict[str, Any]) -> float:
    row = result["rows"][0]
    return float(row["tokens"] / mean(row["contenders"]["ours"]["each_seconds"]))


# --- output --------------------------------------------------------------------------------------


def table(result: dict[str, Any]) -> str:
    lines = [
        result["machine"],
        "",
        "     users   build  a round  lending anew  fair shares  peak GB",
    ]
    for row in result["users"]:
        lines.append(
            f"{row['users']:>10,} {row['build_seconds']:>6.2f}s "
            f"{row['round_seconds'] * 1e3:>6.1f}ms {row['round_with_lending_seconds']:>12.2f}s "
            f"{row['fair_shares_seconds']:>11.1f}s {row['peak_bytes'] / 1e9:>8.2f}"
        )
    lines += ["", "    weights  trained  plain s  private s  plain/private"]
    for row in result["models"]:
        lines.append(
            f"{row['weights'] / 1e6:>9.1f} M {row['trained'] / 1e6:>6.2f} M "
            f"{row['plain_seconds']:>8.3f} {row['private_seconds']:>10.3f} {row['ratio']:>14.2f}"
        )
    lines += ["", "100 million users, 7 billion weights"]
    for row in result["estimate"]:
        number = f"{row['value']:,.4g} {row['unit']}".strip()
        lines.append(f"{row['factor']:<40} {number:>18}  {row['source']}")
    return "\n".join(lines)


def page(result: dict[str, Any], shared: dict[str, Any]) -> str:
    """The tables of docs/scale.md."""
    users = [
        f"| {row['users']:,} | {row['sentences']:,} | {row['build_seconds']:.2f} s "
        f"| {1e3 * row['round_seconds']:.1f} ms | {row['round_with_lending_seconds']:.2f} s "
        f"| {row['fair_shares_seconds']:.1f} s | {row['peak_bytes'] / 1e9:.2f} GB |"
        for row in result["users"]
    ]
    models = [
        f"| {row['weights'] / 1e6:.1f} M | {row['trained'] / 1e6:.2f} M "
        f"| {row['plain_seconds']:.2f} s | {row['private_seconds']:.2f} s | {row['ratio']:.2f} |"
        for row in result["models"]
    ]
    processes = [
        f"| {row['processes']} | {row['seconds_a_round']:.2f} s | {row['speed']:.2f} |"
        for row in shared["rows"]
    ]
    factors = [
        f"| {row['factor']} | {row['value']:,.4g} {row['unit']} | {row['source']} |"
        for row in result["estimate"]
    ]
    tables = (
        (
            "| users | sentences | incidence built | draw | with lending anew "
            "| fair shares anew | peak memory |",
            users,
        ),
        ("| weights | trained | plain step | private step | plain / private |", models),
        ("| processes | a round | speed |", processes),
        ("| 100 million users, 7 billion weights | | from |", factors),
    )
    blocks = []
    for header, lines in tables:
        columns = header.count("|") - 2
        rule = "| --- |" + " ---: |" * columns
        if lines is factors:
            rule = "| --- | ---: | --- |"
        blocks.append("\n".join([header, rule, *lines]))
    return "\n\n".join(blocks)


def write_page() -> None:
    names = ("scale.json", "distributed.json")
    whole = page(*(json.loads((RESULTS / name).read_text()) for name in names))
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n\n{whole}\n\n{END}{rest.partition(END)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, nargs="+", default=USERS)
    parser.add_argument("--models", type=int, default=len(WIDTHS), help="How many, from the least.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--host", type=int, help="Measure one size in this process.")
    parser.add_argument("--page", action="store_true", help="Write the page, measure nothing.")
    options = parser.parse_args()
    if options.page:
        write_page()
        return
    if options.host:
        print(json.dumps(host(options.host)))
        return
    users = [
        json.loads(subprocess.check_output([sys.executable, __file__, "--host", str(count)]))
        for count in options.users
    ]
    result = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "users": users,
        "models": [of_model(*size) for size in WIDTHS[: options.models]],
        "estimate": estimate(users),
    }
    (options.out / "scale.json").write_text(json.dumps(result, indent=2) + "\n")
    text = table(result)
    (options.out / "scale.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
