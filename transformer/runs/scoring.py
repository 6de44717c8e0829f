"""Scores what evaluate.py is given: splits, a test set, or existing translations."""

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
    data_beside,
    evaluate,
    evaluate_test_set,
    table,
)
from transformer.runs.outputs import Destination
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.commands import script
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path, DEFINE_paths
from transformer.tasks.task import find_task

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
    place = Path(workdir).expanduser() if workdir else None
    is_of_test_sets = any(flags.FLAGS[name].value is not None for name in OWN)
    config = run_config.load(place) if place and is_of_test_sets else None
    if config and config.kind.score_test_set is None:
        raise UserError(
            f"{place} is a run of the task {config.task.name}, and test sets by file or name and "
            "tokenizers of BLEU are for seq2seq; give --split alone"
        )
    test = _test_set(place, config)
    if HYPOTHESES.value:
        _score(place, config, test, output_dir)
        return
    model = restore()
    if test:
        evaluate_test_set(model, test)
    else:
        check_can_evaluate(model, SPLIT.value)
        for split in SPLIT.value:
            evaluate(model, split)


def _test_set(workdir: Path | None, config: run_config.Config | None) -> TestSet | None:
    """The test set that the flags name, if it is no split."""
    if REFERENCE.value:
        return read_files(SOURCE.value, REFERENCE.value)
    if not TESTSET.value:
        return None
    languages = pair(LANGUAGES.value or "")
    if config:
        languages = config.data.source_language, config.data.target_language
        if config.data.is_tokenized:
            raise UserError(
                f"{workdir} reads text that is tokenised, and sacreBLEU's test sets are not; "
                "tokenise one and give it as --source and --reference"
            )
    with distributed.first_alone():
        return sacrebleu_test_set(TESTSET.value, *languages)


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
    path, hypotheses = HYPOTHESES.value, lines_of(HYPOTHESES.value)
    inputs, parts = {"hypotheses": Input.of(path, hypotheses)}, [f"of-{Path(path).name}"]
    if config:
        given = {f"data.{name}": flags.FLAGS[name].value for name in DATA_FLAGS}
        given = {field: value for field, value in given.items() if value is not None}
        data = run_config.with_fields(config, given).data
        of = test.name if test else SPLIT.value[0]
        more_parts, more_inputs = data_beside(config.data, data, of)
        parts, inputs = parts + more_parts, inputs | more_inputs
        task, text = config.kind, kind_of_text(data)
        if test is None:
            if not flags.FLAGS.trust_paths:
                trusted_paths.check(workdir, trusted_paths.unknown(config, given))
            sources, references = map(list, zip(*open_source(data, of).pairs(), strict=True))
            test = TestSet(of, sources, [references])
    else:
        task = find_task("seq2seq")
        text = {"target_language": pair(LANGUAGES.value)[1], "bleu_tokenizer": BLEU_TOKENIZER.value}
        parts += [f"bleu_tokenizer={BLEU_TOKENIZER.value}"] * BLEU_TOKENIZER.present
    check_lines({path: len(hypotheses), test.name: len(test.references[0])})
    if not distributed.is_first():
        return
    destination, written = None, ""
    if workdir or output_dir:
        name = "-".join([test.name, *parts])
        destination = Destination.of(workdir, output_dir, name, {**inputs, **test.inputs})
        destination.check()
    check_language(test.references[0], **text)
    outputs = task.score_test_set(text, test, hypotheses)
    print(table(outputs))
    if destination:
        scores = {**outputs.scores, "split": test.name, "hypotheses": path}
        scores["examples"] = len(hypotheses)
        written = f"; scores in {destination.write(outputs, scores)}"
    print(f"{len(hypotheses)} examples{written}")
