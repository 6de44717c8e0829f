"""Table 2 on today's accelerators: FLOPs, time and cost of each row, and its commands.

    python benchmarks/table2.py
    python benchmarks/table2.py --utilisation=0.3 --devices=8 --prices="NVIDIA H100=2.50"

FLOPs are those of the model (two for each multiplication, forward and backward) for the updates of
the config, on pairs with lengths like WMT's and full batches. Time is FLOPs by the maker's peak for
bfloat16 and by --utilisation, which is an assumption: train.py logs the true one as train/mfu.
Prices are yours: dollars for an hour of one device.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from absl import flags

from benchmarks.program import training_flops
from benchmarks.synthetic import median_length, synthetic_pairs
from transformer.configs import base, base_en_fr, big, big_en_fr
from transformer.reports.tables import FORMATS, formatted
from transformer.runs import cli
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.hardware import SPECIFICATIONS

UTILISATION = flags.DEFINE_float("utilisation", 0.4, "The share of the peak that is reached.")
DEVICES = flags.DEFINE_integer("devices", 8, "How many of them share the work.", lower_bound=1)
PRICES = flags.DEFINE_list("prices", [], "NAME=DOLLARS for an hour of one device, or several.")
FORMAT = flags.DEFINE_enum("format", "text", FORMATS, "Of the tables.")

# By config: the data, the paper's FLOPs (GPUs x time x what it assumes of a P100) and BLEU, and how
# many checkpoints it averages.
ROWS = {
    "base": (base, "WMT14 en-de", 3.3e18, 27.3, 5),
    "big": (big, "WMT14 en-de", 2.3e19, 28.4, 20),
    "base_en_fr": (base_en_fr, "WMT14 en-fr", 3.3e18, 38.1, 5),
    "big_en_fr": (big_en_fr, "WMT14 en-fr", 2.3e19, 41.8, 20),
}
PAIRS = 20_000  # that stand for all


def main() -> None:
    if not 0 < UTILISATION.value <= 1:
        raise UserError(f"--utilisation is {UTILISATION.value}; it must be in (0, 1]")
    prices = prices_of(PRICES.value)
    flops = {
        name: training_of(Config.from_dict(ROWS[name][0].get_config().to_dict())) for name in ROWS
    }
    head = ["config", "data", "paper's BLEU", "paper's FLOPs", "FLOPs here"]
    rows = [
        [name, data, f"{bleu}", f"{paper:.1e}", f"{flops[name]:.2e}"]
        for name, (_, data, paper, bleu, _) in ROWS.items()
    ]
    print(formatted(head, rows, FORMAT.value))
    head = [f"hours on {DEVICES.value} x", *ROWS]
    if prices:
        head += [f"$ {name}" for name in ROWS]
    print(formatted(head, times(flops, prices), FORMAT.value))
    for name, (*_, average) in ROWS.items():
        print(
            f"python train.py --config=configs/{name}.py --config.model.dtype=bfloat16 "
            f"--workdir=runs/{name}\n"
            f"python evaluate.py --workdir=runs/{name} --checkpoint=average "
            f"--average_last={average} --split=test"
        )


def prices_of(given: list[str]) -> dict[str, float]:
    prices = {}
    for text in given:
        name, _, dollars = text.partition("=")
        try:
            prices[name.strip()] = float(dollars)
        except ValueError as error:
            raise UserError(f"--prices has {text!r}; give NAME=DOLLARS") from error
        if name.strip() not in SPECIFICATIONS:
            known = ", ".join(SPECIFICATIONS)
            raise UserError(f"--prices has {name!r}; the devices known are {known}")
    return prices


def training_of(config: Config) -> float:
    """The FLOPs of all updates of a config, whose batches are full on their longer side."""
    limits = config.data.max_source_length, config.data.max_target_length
    vocab_size = config.tokenizer.vocab_size
    pairs = synthetic_pairs(PAIRS, vocab_size, limits, median_length(limits))
    lengths = pairs.source_lengths, pairs.target_lengths
    per_token = training_flops(config, vocab_size, *lengths).sum() / max(x.sum() for x in lengths)
    return float(per_token * config.training.tokens_per_update * config.training.steps)


def times(flops: dict[str, float], prices: dict[str, float]) -> list[list[str]]:
    """For each device its name, the hours of each row, and their cost where a price is known."""
    rows = []
    for device, (peak, *_) in SPECIFICATIONS.items():
        hours = [x / (peak * UTILISATION.value * DEVICES.value * 3600) for x in flops.values()]
        row = [device, *(f"{x:.2f}" for x in hours)]
        if prices:
            dollars = prices.get(device)
            row += ["" if dollars is None else f"{x * DEVICES.value * dollars:.0f}" for x in hours]
        rows.append(row)
    return rows


if __name__ == "__main__":
    cli.run(main)
