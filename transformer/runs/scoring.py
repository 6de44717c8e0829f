"""What evaluate.py is asked to score: splits, a test set, or translations that are there."""

import os
from collections.abc import Callable
from pathlib import Path

from absl import flags

from transformer.data.sources import open_source
from transformer.data.test_sets import (
    TestSet,
    check_lines,
    lines_of,
    read_files,
    sacrebleu_test_set,
)
from transformer.runs import run_config, trusted_paths
from transformer.runs.evaluation import (
    check_can_evaluate,
    check_task,
    evaluate,
    evaluate_test_set,
    table,
    write_outputs,
)
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.tasks import seq2seq

SPLIT = flags.DEFINE_list(
    "split", "test", "train, validation, test, or another split of the run's data set; or several."
)
SOURCE = flags.DEFINE_string(
    "source", None, "A test set of your own: a text file, or .gz, one sentence a line."
)
REFERENCE = flags.DEFINE_list(
    "reference", None, "Its translation; of several translations, as many files."
)
TESTSET = flags.DEFINE_string(
    "testset", None, "A test set by sacreBLEU's name, such as wmt14/full; downloaded if new."
)
HYPOTHESES = flags.DEFINE_string(
    "hypotheses", None, "A file of translations to score; nothing is translated."
)
LANGUAGES = flags.DEFINE_string(
    "languages", None, "Of --hypotheses without --workdir, such as en-de."
)
OWN = tuple(flag.name for flag in (SOURCE, REFERENCE, TESTSET, HYPOTHESES, LANGUAGES))


def run(workdir: str | None, restore: Callable[[], TrainedModel]) -> None:
    """Scores what the flags ask for.

    restore: gives the model of the work directory; not called if translations are given.
    """
    _check_flags(workdir)
    workdir = workdir and os.path.expanduser(workdir)
    config = run_config.load(Path(workdir)) if workdir and _names_a_test_set() else None
    if config:
        check_task(Path(workdir), config)
    test = None
    if REFERENCE.value:
        test = read_files(SOURCE.value, REFERENCE.value)
    elif TESTSET.value:
        languages = (LANGUAGES.value or "").partition("-")[::2]
        if config:
            languages = config.data.source_language, config.data.target_language
            if config.data.is_tokenized:
                raise UserError(
                    f"{workdir} reads text that is tokenised, and sacreBLEU's test sets are not; "
                    "tokenise one and give it as --source and --reference"
                )
        with distributed.first_alone():
            test = sacrebleu_test_set(TESTSET.value, *languages)
    if HYPOTHESES.value:
        _score(workdir, config, test)
        return
    model = restore()
    if test:
        evaluate_test_set(model, test)
    else:
        check_can_evaluate(model, SPLIT.value)
        for split in SPLIT.value:
            evaluate(model, split)


def _names_a_test_set() -> bool:
    return any(flag.value is not None for flag in (SOURCE, REFERENCE, TESTSET, HYPOTHESES))


def _check_flags(workdir: str | None) -> None:
    """Raises UserError for flags that do not go together."""
    if REFERENCE.present and not (REFERENCE.value and all(REFERENCE.value)):
        raise UserError("--reference names no file; give one, or several with commas between them")
    if SOURCE.present and not REFERENCE.value:
        raise UserError(
            "--source is given without --reference; to translate without scores: translate.py"
        )
    if REFERENCE.present and not (SOURCE.value or HYPOTHESES.value):
        raise UserError("--reference is given without --source or --hypotheses; give one of them")
    if TESTSET.present and REFERENCE.present:
        raise UserError("--testset and --reference are given; give one of them")
    if SPLIT.present and (TESTSET.present or REFERENCE.present):
        raise UserError("--split and another test set are given; leave one of them out")
    if LANGUAGES.present and (workdir or not HYPOTHESES.value):
        raise UserError("--languages is for --hypotheses without --workdir; leave it out")
    if HYPOTHESES.value and not workdir:
        if not (TESTSET.value or REFERENCE.value):
            raise UserError("--hypotheses needs --reference, --testset or --workdir; give one")
        if not all((LANGUAGES.value or "").partition("-")):
            raise UserError("--hypotheses without --workdir needs --languages, such as en-de")
    if HYPOTHESES.value and len(SPLIT.value) > 1:
        raise UserError("--hypotheses are of one --split; give one")


def _score(workdir: str | None, config: run_config.Config | None, test: TestSet | None) -> None:
    """Scores the translations of --hypotheses; with a work directory also writes what it found."""
    hypotheses = lines_of(HYPOTHESES.value)
    if test is None:
        if not flags.FLAGS.trust_paths:
            trusted_paths.check(Path(workdir), trusted_paths.unknown(config, given=()))
        pairs = open_source(config.data, SPLIT.value[0]).pairs()
        sources, references = map(list, zip(*pairs, strict=True))
        test = TestSet(SPLIT.value[0], sources, [references])
    check_lines({HYPOTHESES.value: len(hypotheses), test.name: len(test.references[0])})
    language = config.data.target_language if config else LANGUAGES.value.partition("-")[2]
    is_tokenized = config.data.is_tokenized if config else False
    outputs = seq2seq.score_test_set(language, is_tokenized, test, hypotheses)
    if not distributed.is_first():
        return
    print(table(outputs))
    place = ""
    if workdir:
        scores = {**outputs.scores, "split": test.name, "hypotheses": HYPOTHESES.value}
        scores["examples"] = len(hypotheses)
        name = f"{test.name}-of-{Path(HYPOTHESES.value).name}"
        place = f"; scores in {write_outputs(Path(workdir), name, outputs, scores)}"
    print(f"{len(hypotheses)} examples{place}")
