"""Scores what evaluate.py is given: splits, a test set, or existing translations."""

import os
from collections.abc import Callable
from pathlib import Path

from absl import flags
from sacrebleu.metrics import BLEU

from transformer.data.languages import pair
from transformer.data.sources import open_source
from transformer.data.test_sets import (
    Input,
    TestSet,
    check_lines,
    lines_of,
    read_files,
    sacrebleu_test_set,
)
from transformer.metrics.scores import check_language, kind_of_text
from transformer.runs import run_config, trusted_paths
from transformer.runs.evaluation import (
    check_can_evaluate,
    check_place,
    check_task,
    evaluate,
    evaluate_test_set,
    inputs_of_data,
    parts_of_data,
    place_of,
    table,
    write_outputs,
)
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.commands import script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, DEFINE_paths
from transformer.tasks import seq2seq

SPLIT = flags.DEFINE_list(
    "split", "test", "train, validation, test, or another split of the run's data set; or several."
)
SOURCE = DEFINE_path(
    "source", None, "A test set of your own: a text file, or .gz, one sentence a line."
)
REFERENCE = DEFINE_paths(
    "reference", None, "Its translation; of several translations, as many files."
)
TESTSET = flags.DEFINE_string(
    "testset", None, "A test set by sacreBLEU's name, such as wmt14/full; downloaded if new."
)
HYPOTHESES = DEFINE_path(
    "hypotheses", None, "A file of translations to score; nothing is translated."
)
LANGUAGES = flags.DEFINE_string(
    "languages", None, "Of --hypotheses without --workdir, such as en-de."
)
BLEU_TOKENIZER = flags.DEFINE_enum(
    "bleu_tokenizer", None, [*BLEU.TOKENIZERS], "One of sacreBLEU's tokenizers, for BLEU."
)
OUTPUT_DIR = DEFINE_path(
    "output_dir", None, "Where to write instead of WORKDIR/eval: a folder, made if need be."
)
DATA_FLAGS = ("data_dir", "raw_dir", "test_file", BLEU_TOKENIZER.name)  # of the data section
OWN = tuple(
    flag.name for flag in (SOURCE, REFERENCE, TESTSET, HYPOTHESES, LANGUAGES, BLEU_TOKENIZER)
)


def run(workdir: str | None, restore: Callable[[], TrainedModel], output_dir: Path | None) -> None:
    """Scores what the flags ask for.

    restore: returns the model of the work directory; not called if translations are given.
    output_dir: where their scores go, if not to the work directory.
    """
    _check_flags(workdir)
    workdir = workdir and os.path.expanduser(workdir)
    config = run_config.load(Path(workdir)) if workdir and _is_for_seq2seq() else None
    if config:
        check_task(Path(workdir), config)
    test = None
    if REFERENCE.value:
        test = read_files(SOURCE.value, REFERENCE.value)
    elif TESTSET.value:
        languages = pair(LANGUAGES.value or "")
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
        _score(workdir and Path(workdir), config, test, output_dir)
        return
    model = restore()
    if test:
        evaluate_test_set(model, test)
    else:
        check_can_evaluate(model, SPLIT.value)
        for split in SPLIT.value:
            evaluate(model, split)


def _is_for_seq2seq() -> bool:
    only = SOURCE, REFERENCE, TESTSET, HYPOTHESES, BLEU_TOKENIZER
    return any(flag.value is not None for flag in only)


def _check_flags(workdir: str | None) -> None:
    """Raises UserError for flags that do not go together."""
    if REFERENCE.present and not (REFERENCE.value and all(REFERENCE.value)):
        raise UserError("--reference names no file; give one, or several with commas between them")
    if SOURCE.present and not REFERENCE.value:
        raise UserError(
            "--source is given without --reference; to translate without scores: "
            f"{script('translate')}"
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
        if not all(pair(LANGUAGES.value or "")):
            raise UserError("--hypotheses without --workdir needs --languages, such as en-de")
    if HYPOTHESES.value and len(SPLIT.value) > 1:
        raise UserError("--hypotheses are of one --split; give one")


def _score(
    workdir: Path | None,
    config: run_config.Config | None,
    test: TestSet | None,
    output_dir: Path | None,
) -> None:
    """Scores the translations of --hypotheses, and writes the scores if there is a place."""
    hypotheses = lines_of(HYPOTHESES.value)
    inputs = {"hypotheses": Input.of(HYPOTHESES.value, hypotheses)}
    parts = [f"of-{Path(HYPOTHESES.value).name}"]
    if config:
        given = {f"data.{name}": flags.FLAGS[name].value for name in DATA_FLAGS}
        given = {field: value for field, value in given.items() if value is not None}
        data = run_config.with_fields(config, given).data
        of = test.name if test else SPLIT.value[0]
        parts += parts_of_data(config.data, data, of)
        inputs |= inputs_of_data(config.data, data, of)
        kind = kind_of_text(data)
        if test is None:
            if not flags.FLAGS.trust_paths:
                trusted_paths.check(workdir, trusted_paths.unknown(config, given))
            sources, references = map(list, zip(*open_source(data, of).pairs(), strict=True))
            test = TestSet(of, sources, [references])
        if output_dir:
            inputs["workdir"] = Input(trusted_paths.absolute(str(workdir)))
    else:
        kind = {"target_language": pair(LANGUAGES.value)[1], "bleu_tokenizer": BLEU_TOKENIZER.value}
        parts += [f"bleu_tokenizer={BLEU_TOKENIZER.value}"] * BLEU_TOKENIZER.present
    check_lines({HYPOTHESES.value: len(hypotheses), test.name: len(test.references[0])})
    inputs |= test.inputs
    place, name = place_of(workdir, output_dir), "-".join([test.name, *parts])
    if not distributed.is_first():
        return
    if place:
        check_place(place, name, inputs)
    check_language(test.references[0], **kind)
    outputs = seq2seq.score_test_set(kind, test, hypotheses)
    print(table(outputs))
    written = ""
    if place:
        scores = {**outputs.scores, "split": test.name, "hypotheses": HYPOTHESES.value}
        scores["examples"] = len(hypotheses)
        written = f"; scores in {write_outputs(place, name, outputs, scores, inputs)}"
    print(f"{len(hypotheses)} examples{written}")
