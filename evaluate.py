"""Scores a trained model: restore -> translate a split -> scores.

    python evaluate.py --workdir=runs/demo --split=test
    python evaluate.py --workdir=runs/base --checkpoint=average --average_last=5
    python evaluate.py --workdir=runs/base --explain=big
    python evaluate.py --workdir=runs/base --checkpoint=average --export=models/base

Writes WORKDIR/eval/<split>/ (of an ensemble, <split>-ensemble): sources.txt, references.txt,
hypotheses.txt, scores.json. In several processes (docs/running.md) the devices of all share the
sentences. For the ledger of results, --record and --verify: see transformer/ledger.py.
"""

if __name__ == "__main__":
    from transformer.system.startup import use_huge_pages

    use_huge_pages()  # before JAX is imported

import dataclasses
import os
import re
import time
from pathlib import Path

from absl import flags

from transformer.data.sources import DataConfig, open_source, training_source
from transformer.evaluation.evaluation import Translations, translate_source, write_evaluation
from transformer.exports.workdir import check_can_be_written, export
from transformer.reports import ledger, recipes
from transformer.runs import cli
from transformer.runs.experiment import EXPORTED
from transformer.runs.progress import Progress
from transformer.runs.restore import TrainedModel, define_flags
from transformer.system import distributed
from transformer.system.errors import UserError

restore_model = define_flags()
SPLIT = flags.DEFINE_list(
    "split", "test", "train, validation, test, or another split of the run's data set; or several."
)
DATA_DIR = flags.DEFINE_string("data_dir", None, "Instead of the run's data.data_dir.")
RAW_DIR = flags.DEFINE_string("raw_dir", None, "Instead of the run's data.raw_dir.")
RECORD = flags.DEFINE_string(
    "record",
    None,
    "A JSON file of the ledger to write. Without --checkpoint, the best and the average are "
    "tried on validation, and the better one is used.",
)
VERIFY = flags.DEFINE_string(
    "verify", None, "A JSON file of the ledger to check: with --workdir, by translating again."
)
EXPLAIN = flags.DEFINE_string(
    "explain", None, f"A recipe to compare the run with: {', '.join(recipes.RECIPES)}."
)
EXPORT = flags.DEFINE_string(
    "export", None, "A work directory to make, of the chosen parameters and no others."
)


def main() -> None:
    distributed.initialize()
    given = [flag.name for flag in (RECORD, VERIFY, EXPLAIN, EXPORT) if flag.value is not None]
    if len(given) > 1:
        raise UserError(f"--{' and --'.join(given)} are given; give one of them")
    if given in (["explain"], ["export"]) and flags.FLAGS.ensemble:
        raise UserError(f"--{given[0]} is for one run; leave --ensemble out")
    if not all(SPLIT.value) or not SPLIT.value:
        raise UserError("--split is empty; name a split, such as test")
    if EXPLAIN.value is not None:
        explain(EXPLAIN.value)
    elif EXPORT.value is not None:
        export_to(Path(os.path.normpath(os.path.expanduser(EXPORT.value))))
    elif VERIFY.value is not None:
        verify(Path(VERIFY.value))
    elif RECORD.value is not None:
        record(Path(RECORD.value))
    else:
        model = restore_model()
        for split in SPLIT.value:
            evaluate(model, split)


def evaluate(model: TrainedModel, split: str) -> tuple[Translations, dict[str, dict]]:
    """Translates a split and writes and prints what that scores."""
    # 1. The split.
    data = data_of(model.config.data)
    with distributed.first_alone():
        source = open_source(data, split)
    steps = ", ".join(map(str, model.steps))
    others = "".join(f" with {other.workdir}" for other in model.others)
    print(f"{model.workdir} at step {steps}{others}; {source.describe()}", flush=True)

    # 2. Its translations, by the devices of all processes.
    start = time.monotonic()
    is_first = distributed.is_first()
    with Progress(len(source), initial=0) if is_first else distributed.Quiet() as progress:
        translations = translate_source(model.translator, model.params, source, progress.update)
    seconds = time.monotonic() - start
    if not is_first:
        return translations, {}

    # 3. Their scores.
    scores = translations.scores(data)
    directory = write_evaluation(
        model.workdir,
        f"{split}-ensemble" if model.others else split,
        translations,
        {
            **scores,
            "split": split,
            "sentences": len(source),
            "seconds": round(seconds, 1),
            **model.provenance(),
        },
    )
    print(translations.examples(3))
    for name, score in scores.items():
        print(f"{name:40} {score['score']:6.2f}  {score.get('signature') or score['definition']}")
    print(f"{len(source)} sentences in {seconds:.1f} s; texts and scores in {directory}")
    return translations, scores


def record(path: Path) -> None:
    """Chooses a checkpoint on the validation split, translates the others, writes the result."""
    # 1. All that can be wrong, before hours of work.
    for workdir in (flags.FLAGS.workdir, *(flags.FLAGS.ensemble or [])):
        if workdir and (Path(workdir) / EXPORTED).exists():
            raise UserError(f"{workdir} was exported; record the training run that it comes from")
    given = flags.FLAGS.checkpoint
    average_last = flags.FLAGS.average_last
    models = {
        name: restore_model(
            checkpoint=name, average_last=average_last if given or name == "average" else None
        )
        for name in ([given] if given else ["best", "average"])
    }
    model = next(iter(models.values()))
    data = data_of(model.config.data)
    tested = [split for split in SPLIT.value if split != "validation"]
    with distributed.first_alone():
        ledger.check_can_be_recorded(path, model, ["validation", *tested])
        training_source(data)
        for split in ["validation", *tested]:
            open_source(data, split)
    hashes = ledger.text_hashes(data)
    for other in model.others:
        if ledger.text_hashes(data_of(other.config.data)) != hashes:
            raise UserError(
                f"{other.workdir} and {model.workdir} were trained on different text; a result is "
                "of an ensemble on the same"
            )

    # 2. The choice.
    validation = {name: evaluate(model, "validation") for name, model in models.items()}
    bleu = distributed.from_first(
        lambda: {name: scores["bleu"]["score"] for name, (_, scores) in validation.items()}
    )
    chosen = max(bleu, key=bleu.get)
    print(f"chosen by validation BLEU: {chosen}, of {bleu}", flush=True)

    # 3. The other splits, with that.
    splits = {"validation": validation[chosen]}
    splits |= {split: evaluate(models[chosen], split) for split in tested}
    if distributed.is_first():
        result = ledger.new_result(models[chosen], bleu, splits, hashes)
        ledger.write(path, result, splits)
        print(f"written  {path}; python -m transformer.reports.results_page makes RESULTS.md of it")
        starts = [start for run in ledger.all_runs(result) for start in run["starts"]]
        for commit in {start["commit"] for start in starts}:
            if not re.fullmatch("[0-9a-f]+", commit):
                print(f"warning: the commit is {commit}; others need one that they can have")


def verify(path: Path) -> None:
    """Compares the scores of a result with those of now; exit code 1 if they disagree."""
    for name in ("split", "checkpoint", "average_last", "beam_size", "length_penalty"):
        if flags.FLAGS[name].present:
            raise UserError(f"--{name} is given, and {path} says which; leave it out")
    if flags.FLAGS.ensemble and not flags.FLAGS.workdir:
        raise UserError("--ensemble is given without --workdir; give both, or neither")
    recorded = ledger.read(path)
    found = {}
    if flags.FLAGS.workdir:
        checkpoint, steps = recorded["checkpoint"], recorded["checkpoint_steps"]
        model = restore_model(
            checkpoint=checkpoint,
            average_last=len(steps) if checkpoint == "average" else None,
            beam_size=recorded["beam_size"],
            length_penalty=recorded["length_penalty"]["alpha"],
        )
        ledger.check_same_runs(path, recorded, model)
        for split in recorded["splits"]:
            translations, found[split] = evaluate(model, split)
            pairs = zip(translations.sources, translations.references, strict=True)
            ledger.check_text(path, recorded, split, pairs)
        tolerance = ledger.TOLERANCE
    else:
        data = data_of(ledger.data_config(path, recorded))
        for split in recorded["splits"]:
            pairs = list(open_source(data, split).pairs())
            ledger.check_text(path, recorded, split, pairs)
            hypotheses = ledger.saved_hypotheses(path, recorded, split)
            sources, references = (list(side) for side in zip(*pairs, strict=True))
            found[split] = Translations(sources, references, hypotheses).scores(data)
        tolerance = 0.005  # as printed
    if not distributed.is_first():
        return
    lines = ledger.disagreements(recorded, found, tolerance)
    for line in lines:
        print(f"differs  {line}")
    count = sum(len(entry["scores"]) for entry in recorded["splits"].values())
    print(f"{path}: {count - len(lines)} of {count} scores agree to within {tolerance}", flush=True)
    if lines:
        distributed.end(1, "")


def explain(name: str) -> None:
    """Prints in what a run and its evaluation differ from a recipe; translates nothing."""
    recipes.find_recipe(name)
    model = restore_model()
    for split in SPLIT.value:
        evaluation = {**model.provenance(), "split": split}
        differences = recipes.explain(model.config, name, evaluation=evaluation)
        if distributed.is_first():
            print(recipes.shown(differences, name))


def export_to(directory: Path) -> None:
    """Writes the chosen parameters as a work directory of their own; translates nothing."""
    if distributed.job() is not None:
        raise UserError("--export works in one process; start it once, without srun or mpirun")
    for name in ("split", "beam_size", "length_penalty"):
        if flags.FLAGS[name].present:
            raise UserError(f"--{name} is given, and --export translates nothing; leave it out")
    check_can_be_written(directory)
    model = restore_model()
    export(model, directory)
    print(f"written  {directory}, the {model.checkpoint} of {model.workdir}")


def data_of(data: DataConfig) -> DataConfig:
    """The data of a run, where the flags say that they are."""
    places = {"data_dir": DATA_DIR.value, "raw_dir": RAW_DIR.value}
    return dataclasses.replace(data, **{k: v for k, v in places.items() if v is not None})


if __name__ == "__main__":
    cli.run(main)
