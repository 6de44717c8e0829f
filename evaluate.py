"""Scores a trained model on a split, compares it with a recipe, or exports it.

    python evaluate.py --workdir=runs/demo --split=test
    python evaluate.py --workdir=runs/demo --source=news.en --reference=news.de
    python evaluate.py --workdir=runs/base --testset=wmt14/full
    python evaluate.py --workdir=runs/demo --hypotheses=others.de
    python evaluate.py --workdir=runs/base --checkpoint=average --average_last=5
    python evaluate.py --workdir=/models/base --output_dir=scores
    python evaluate.py --workdir=runs/base --explain=big
    python evaluate.py --workdir=runs/base --checkpoint=average --export=models/base

Writes sources.txt, references.txt, hypotheses.txt and scores.json to WORKDIR/eval/<split>/, or to
OUTPUT_DIR/<split>/. Settings that are not default appear in the folder's name: test-step-500,
test-average-5-at-1000, test-beam_size=1. WORKDIR/eval/latest leads to the last folder written. In
several processes (docs/jobs.md) the devices of all share the work. --record and --verify are for
the ledger of results: docs/results.md.
"""

if __name__ == "__main__":
    from transformer.system.startup import be_quiet_when_interrupted, use_huge_pages

    be_quiet_when_interrupted()
    use_huge_pages()  # before JAX is imported

import dataclasses
import os
from pathlib import Path
from typing import Any

from absl import flags

from transformer.exports import workdir as workdir_export
from transformer.reports import ledger, recipes
from transformer.runs import cli, restore, scoring
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path

restore_model = restore.define_flags({"data.bleu_tokenizer": scoring.BLEU_TOKENIZER})
for module in (scoring, distributed):
    flags.adopt_module_key_flags(module)  # for --help
RECORD = DEFINE_path(
    "record",
    None,
    "A JSON file of the ledger to write. Without --checkpoint, the best and the average are "
    "tried on validation, and the better one is used.",
)
VERIFY = DEFINE_path(
    "verify",
    None,
    "A JSON file of the ledger to check: the outputs saved beside it, or with --workdir the run.",
)
EXPLAIN = flags.DEFINE_string(
    "explain", None, f"A recipe to compare the run with: {', '.join(recipes.RECIPES)}."
)
EXPORT = DEFINE_path(
    "export", None, "A work directory to make, of the chosen parameters and no others."
)


def main() -> None:
    distributed.initialize()
    values = flags.FLAGS
    given = [flag.name for flag in (RECORD, VERIFY, EXPLAIN, EXPORT) if flag.value is not None]
    if len(given) > 1:
        raise UserError(f"--{' and --'.join(given)} are given; give one of them")
    splits = scoring.SPLIT.value
    if not all(splits) or not splits:
        raise UserError("--split is empty; name a split, such as test")
    # Each of these modes decides these flags by itself.
    refuse_flags("explain", EXPLAIN, "is for one run", "ensemble", *scoring.OWN)
    refuse_flags("export", EXPORT, "is for one run", "ensemble")
    refuse_flags(
        *("export", EXPORT, "evaluates nothing", "split", "output_dir", *scoring.OWN),
        *restore.DECODING_FLAGS,
    )
    of_result = "checkpoint", "average_last", *restore.DECODING_FLAGS
    refuse_flags("verify", VERIFY, "takes that from the result", "split", *scoring.OWN, *of_result)
    refuse_flags("record", RECORD, "takes that from the run's config", "bleu_tokenizer")
    refuse_flags("record", RECORD, "is of the splits of a run", *scoring.OWN)
    refuse_flags("hypotheses", scoring.HYPOTHESES, "translates nothing", "ensemble", *of_result)
    refuse_flags("explain", EXPLAIN, "writes nothing", "output_dir")
    if not values.workdir:
        refuse_flags("verify", VERIFY, "without --workdir writes nothing", "output_dir")
    output_dir = values.output_dir and Path(values.output_dir).expanduser()

    def restore_here(**instead: Any) -> restore.TrainedModel:
        return dataclasses.replace(restore_model(**instead), output_dir=output_dir)

    if EXPLAIN.value is not None:
        recipes.explain_run(EXPLAIN.value, splits, restore_model)
    elif EXPORT.value is not None:
        directory = Path(os.path.normpath(os.path.expanduser(EXPORT.value)))
        workdir_export.export_chosen(directory, restore_model)
    elif VERIFY.value is not None:
        if values.ensemble and not values.workdir:
            raise UserError("--ensemble is given without --workdir; give both, or neither")
        restoring = restore_here if values.workdir else None
        if not ledger.verify(
            Path(VERIFY.value).expanduser(), restoring, values.data_dir, values.raw_dir
        ):
            distributed.end(1, "")
    elif RECORD.value is not None:
        path = Path(RECORD.value).expanduser()
        ledger.record(path, splits, restore_here, values.checkpoint, values.average_last)
    else:
        scoring.run(values.workdir, restore_here, output_dir)


def refuse_flags(name: str, flag: flags.FlagHolder, reason: str, *others: str) -> None:
    """Raises UserError if one of the other flags is given beside this one."""
    for other in others:
        if flag.value is not None and flags.FLAGS[other].present:
            raise UserError(f"--{other} is given, and --{name} {reason}; leave --{other} out")


if __name__ == "__main__":
    cli.run(main)
