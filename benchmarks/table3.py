"""Table 3: the paper's columns, the parameters of its rows, and the same rows in small.

    python benchmarks/table3.py
    python benchmarks/table3.py --results=results/table3 --format=md

Parameters are counted for the true sizes. The paper does not give the rows of its embedding matrix:
its text says about 37,000 tokens, its counts fit about 41,000 (and 36,000 for big), so both are
shown. With --results, the folder in which sweep.py recorded configs/sweeps/table3.py, the table
also has our scores: mean and standard deviation over seeds.
"""

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from absl import flags

from benchmarks import results_page
from benchmarks.program import sizes_of
from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.reports.ledger import Result
from transformer.reports.tables import FORMATS, formatted
from transformer.runs import cli, sweep
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

RESULTS = DEFINE_path("results", None, "Folder with results of the sweep in small.")
FORMAT = flags.DEFINE_enum("format", "text", FORMATS, "Of the table.")
VOCABULARIES = (37_000, 41_000)
SMALL = "configs/sweeps/table3.py"
OURS = ("seeds", "perplexity", "BLEU, validation", "BLEU, test", "million parameters")
# Perplexity, BLEU and millions of parameters of the paper, which leaves the latter out in (A), (D)
# and (E).
PAPER = {
    "base": ("4.92", "25.8", "65"),
    "A_1_head": ("5.29", "24.9", ""),
    "A_4_heads": ("5.00", "25.5", ""),
    "A_16_heads": ("4.91", "25.8", ""),
    "A_32_heads": ("5.01", "25.4", ""),
    "B_d_k_16": ("5.16", "25.1", "58"),
    "B_d_k_32": ("5.01", "25.4", "60"),
    "C_2_layers": ("6.11", "23.7", "36"),
    "C_4_layers": ("5.19", "25.3", "50"),
    "C_8_layers": ("4.88", "25.5", "80"),
    "C_d_model_256": ("5.75", "24.5", "28"),
    "C_d_model_1024": ("4.66", "26.0", "168"),
    "C_d_ff_1024": ("5.12", "25.4", "53"),
    "C_d_ff_4096": ("4.75", "26.2", "90"),
    "D_dropout_0.0": ("5.77", "24.6", ""),
    "D_dropout_0.2": ("4.95", "25.5", ""),
    "D_smoothing_0.0": ("4.67", "25.3", ""),
    "D_smoothing_0.2": ("5.47", "25.7", ""),
    "E_learned_positions": ("4.92", "25.7", ""),
    "big": ("4.33", "26.4", "213"),
}


def main() -> None:
    paper = "configs/sweeps/table3_paper.py"
    head = ["row", "paper: perplexity", "BLEU", "million parameters"]
    head += [f"ours, {vocabulary // 1000}k" for vocabulary in VOCABULARIES]
    lines = []
    for run in sweep.runs_of(sweep.read_plan(paper), paper):
        counts = [f"{millions(run.config, vocabulary):.1f}" for vocabulary in VOCABULARIES]
        lines.append([run.row, *PAPER[run.row], *counts])
    if RESULTS.value:
        folder = Path(RESULTS.value).expanduser()
        recorded = results_page.by_row(results_page.of_folder(folder))
        if not recorded.keys() & PAPER.keys():
            raise UserError(f"--results={folder} has no row of {SMALL}; give its sweep's --results")
        head += [f"small: {name}" for name in OURS]
        lines = [[*line, *in_small(recorded.get(line[0], []))] for line in lines]
    print(formatted(head, lines, FORMAT.value), end="")


def in_small(results: list[Result]) -> list[str]:
    """The cells of OURS for the runs of a row."""
    if not results:
        return [""] * len(OURS)
    mean = results_page.mean_and_deviation
    perplexities = [math.exp(x["curve"]["nll"][-1][1]) for x in results]  # of the last checkpoint
    bleu = [
        mean([x["splits"][name]["scores"]["bleu"]["score"] for x in results if name in x["splits"]])
        for name in ("validation", "test")
    ]
    parameters = f"{results[0]['parameters'] / 1e6:.1f}"
    return [str(len(results)), mean(perplexities), *bleu, parameters]


def millions(config: Config, vocabulary: int) -> float:
    model = build_model(config.model, sizes_of(config, vocabulary))
    return num_params(model.abstract_params()) / 1e6


if __name__ == "__main__":
    cli.run(main)
