"""What each model of the comparison costs: parameters, arithmetic, tokens a second. In turns.

    python benchmarks/families.py --output=families.json

Prints a table in Markdown. Training is that of training_speed.py, with made-up pairs; decoding
that of decoding_speed.py, with random weights and sentences. So it needs no download.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from absl import flags

from benchmarks import timing
from transformer.runs import cli
from transformer.runs.provenance import ROOT, conditions
from transformer.system.errors import UserError
from transformer.system.files import check_can_write
from transformer.system.paths import DEFINE_path

OF_THE_COMPARISON = [
    *("multi30k_lstm", "multi30k_bahdanau", "multi30k_luong", "rnn_conditional"),
    *("multi30k_conditional", "multi30k_convs2s", "multi30k_tiny", "multi30k_universal"),
]

CONFIGS = flags.DEFINE_list("configs", OF_THE_COMPARISON, "Names of files in configs/")
OVERRIDES = flags.DEFINE_multi_string("override", [], "FIELD=VALUE, for each of the configs")
DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["float32", "bfloat16"], "model.dtype of all")
VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 10_000, "Of both sides, one for all", lower_bound=8)
SENTENCES = flags.DEFINE_integer("sentences", 96, "To translate at a time", lower_bound=1)
TOKENS = flags.DEFINE_integer("tokens", 15, "Of each translation", lower_bound=2)
BEAM_SIZE = flags.DEFINE_integer("beam_size", 5, "Hypotheses of each sentence", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 20, "Updates of a measurement", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 3, "Measurements of each", lower_bound=1)
OUTPUT = DEFINE_path("output", None, "A JSON file for the result")


def main() -> None:
    for name in CONFIGS.value:
        if not (ROOT / "configs" / f"{name}.py").is_file():
            raise UserError(f"--configs has {name!r}; there is no configs/{name}.py")
    if OUTPUT.value:
        check_can_write(Path(OUTPUT.value), ".json")
    found: dict[str, dict[str, Any]] = {name: {} for name in CONFIGS.value}
    with tempfile.TemporaryDirectory() as cache:
        # Only the first round compiles.
        environment = {"JAX_COMPILATION_CACHE_DIR": cache}
        measurements = {}
        for name, result in found.items():
            measurements[f"{name}, training"] = lambda n=name, r=result: train(n, r, environment)
            measurements[f"{name}, decoding"] = lambda n=name, r=result: decode(n, r, environment)
        try:
            seconds = timing.alternate(measurements, ROUNDS.value)
        except timing.Failed as error:
            raise UserError(f"a benchmark failed ({error}); it says above why") from error
    speeds = "Training, tokens/s | Decoding, tokens/s"
    print(f"| Config | Million parameters | MFLOPs a token | {speeds} |\n|---|---|---|---|---|")
    for name, result in found.items():
        of_a_token = {
            kind: timing.summary(seconds[f"{name}, {kind}"]) for kind in ("training", "decoding")
        }
        result["seconds_per_token"] = of_a_token
        trained, decoded = (f"{1 / of_a_token[kind]['median']:,.0f}" for kind in of_a_token)
        millions = f"{result['parameters'] / 1e6:.1f} | {result['flops_per_token'] / 1e6:.1f}"
        print(f"| `{name}` | {millions} | {trained} | {decoded} |")
    if OUTPUT.value:
        timing.write(OUTPUT.value, {"families": found, "conditions": conditions()})


def config_flags(name: str) -> list[str]:
    return [
        f"--config={ROOT / 'configs' / name}.py",
        f"--config.model.dtype={DTYPE.value}",
        f"--config.tokenizer.vocab_size={VOCAB_SIZE.value}",
        *(f"--config.{override}" for override in OVERRIDES.value),
    ]


def train(name: str, result: dict[str, Any], environment: dict[str, str]) -> float:
    """Seconds of a source or target token in training."""
    flags_of_it = [*config_flags(name), f"--steps={STEPS.value}"]
    found = timing.run_benchmark("training_speed.py", flags_of_it, environment)
    result |= {key: found[key] for key in ("config", "parameters", "flops_per_token")}
    return 1 / found["tokens_per_second"]


def decode(name: str, result: dict[str, Any], environment: dict[str, str]) -> float:
    """Seconds of a token that beam search writes."""
    sizes = {
        "vocab_size": VOCAB_SIZE.value,
        "sentences": SENTENCES.value,
        "tokens": TOKENS.value,
        "beam_size": BEAM_SIZE.value,
    }
    flags_of_it = [
        *config_flags(name),
        *(f"--{key}={value}" for key, value in sizes.items()),
        *(f"--engines=ours_{DTYPE.value}", "--rounds=1"),
    ]
    found = timing.run_benchmark("decoding_speed.py", flags_of_it, environment)
    return 1 / found["engines"][f"ours_{DTYPE.value}"]["tokens_per_second"]


if __name__ == "__main__":
    cli.run(main)
