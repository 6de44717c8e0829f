"""Scores a trained model: restore -> translate a split -> scores.

    python evaluate.py --workdir=runs/demo --split=test
    python evaluate.py --workdir=runs/base --checkpoint=average --average_last=5
    python evaluate.py --workdir=runs/base --explain=big

Writes WORKDIR/eval/<split>/: sources.txt, references.txt, hypotheses.txt, scores.json. In
several processes (docs/running.md) the devices of all share the sentences. For the ledger of
results, --record and --verify: see transformer/ledger.py.
"""

if __name__ == "__main__":
    from transformer.startup import use_huge_pages

    use_huge_pages()  # before JAX is imported

import dataclasses
import sys
import time
from pathlib import Path

from absl import flags

from transformer import cli, distributed, ledger, recipes
from transformer.errors import UserError
from transformer.evaluation import Translations, translate_source, write_evaluation
from transformer.logs import Progress
from transformer.sources import DataConfig, open_source
from transformer.trained import TrainedModel, define_flags

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


def main() -> None:
    distributed.initialize()
    given = [flag.name for flag in (RECORD, VERIFY, EXPLAIN) if flag.value]
    if len(given) > 1:
        raise UserError(f"--{' and --'.join(given)} are given; give one of them")
    if EXPLAIN.value:
        explain(EXPLAIN.value)
    elif VERIFY.value:
        verify(Path(VERIFY.value))
    elif RECORD.value:
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
    print(f"{model.workdir} at step {steps}; {source.describe()}", flush=True)

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
        split,
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
    # 1. The choice.
    given = flags.FLAGS.checkpoint
    models, validation = {}, {}
    for name in [given] if given else ["best", "average"]:
        average_last = flags.FLAGS.average_last if name == "average" else None
        models[name] = restore_model(checkpoint=name, average_last=average_last)
        validation[name] = evaluate(models[name], "validation")
    bleu = distributed.from_first(
        lambda: {name: scores["bleu"]["score"] for name, (_, scores) in validation.items()}
    )
    chosen = max(bleu, key=bleu.get)
    print(f"chosen by validation BLEU: {chosen}, of {bleu}", flush=True)

    # 2. The test splits.
    splits = {"validation": validation[chosen]}
    splits |= {split: evaluate(models[chosen], split) for split in SPLIT.value}
    if not distributed.is_first():
        return
    # A split goes by its name in the data set: "test" is another one elsewhere.
    data = data_of(models[chosen].config.data)
    names = {"test": data.test_split} if not data.uses_text_files else {}
    splits = {names.get(split, split): found for split, found in splits.items()}

    # 3. The result.
    text = {
        split: ledger.text_sha256(open_source(data, split)) for split in ("train", "validation")
    }
    ledger.write(path, ledger.new_result(models[chosen], chosen, bleu, splits, text), splits)
    print(f"written  {path}; python -m transformer.ledger makes RESULTS.md of it")


def verify(path: Path) -> None:
    """Compares the scores of a result with those of now; exit code 1 if they disagree."""
    recorded = ledger.read(path)
    found = {}
    if flags.FLAGS.workdir:
        model = restore_model(
            checkpoint=recorded["checkpoint"],
            average_last=len(recorded["checkpoint_steps"])
            if recorded["checkpoint"] == "average"
            else None,
            beam_size=recorded["beam_size"],
            length_penalty=recorded["length_penalty"]["alpha"],
        )
        ledger.check_same_run(path, recorded, model)
        for split in recorded["splits"]:
            found[split] = evaluate(model, split)[1]
        tolerance = ledger.TOLERANCE
    else:
        data = data_of(ledger.data_config(recorded))
        for split in recorded["splits"]:
            hypotheses = ledger.saved_hypotheses(path, recorded, split)
            references = ledger.references(path, recorded, split, open_source(data, split))
            found[split] = Translations([], references, hypotheses).scores(data)
        tolerance = 0.005  # as printed
    if not distributed.is_first():
        return
    lines = ledger.disagreements(recorded, found, tolerance)
    for line in lines:
        print(f"differs  {line}")
    count = sum(len(entry["scores"]) for entry in recorded["splits"].values())
    print(f"{path}: {count - len(lines)} of {count} scores agree to within {tolerance}")
    if lines:
        sys.exit(1)


def explain(name: str) -> None:
    """Prints in what a run and its evaluation differ from a recipe; translates nothing."""
    recipes.find_recipe(name)
    model = restore_model()
    for split in SPLIT.value:
        evaluation = {**model.provenance(), "split": split, "steps": model.last_step}
        differences = recipes.explain(model.config, name, evaluation=evaluation)
        if distributed.is_first():
            print(recipes.shown(differences, name))


def data_of(data: DataConfig) -> DataConfig:
    """The data of a run, where the flags say that they are."""
    places = {"data_dir": DATA_DIR.value, "raw_dir": RAW_DIR.value}
    return dataclasses.replace(data, **{k: v for k, v in places.items() if v is not None})


if __name__ == "__main__":
    cli.run(main)
