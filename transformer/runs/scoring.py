"""Scores what evaluate is given: splits, a test set, or existing translations."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl.flags import FlagValues

from transformer.data.languages import pair
from transformer.data.sources import are_text_files, open_source
from transformer.data.test_sets import (
    Input,
    TestSet,
    lines_of,
    read_files,
    sacrebleu_test_set,
)
from transformer.data.text_files import check_lines
from transformer.metrics.scores import check_language, kind_of_text
from transformer.runs import run_config, trusted_paths
from transformer.runs.evaluation import (
    Other,
    check_can_evaluate,
    compared,
    data_beside,
    evaluate,
    evaluate_test_set,
    table,
)
from transformer.runs.model_flags import LANGUAGES
from transformer.runs.outputs import Destination
from transformer.runs.restore import TrainedModel
from transformer.system import distributed
from transformer.system.buckets import address_of
from transformer.system.errors import UserError
from transformer.tasks.task import find_task

HYPOTHESES = "hypotheses.txt"  # in the folders that evaluate writes
DATA_FLAGS = ("data_dir", "raw_dir", "test_file", "bleu_tokenizer", *LANGUAGES)  # of data


def run(
    asked: FlagValues,
    of_test_sets: Sequence[str],
    restore: Callable[[], TrainedModel],
    output_dir: Path | None,
) -> None:
    """Scores what the flags of evaluate ask for, which go together.

    of_test_sets: names of the flags that say what is scored, if it is no split.
    restore: returns the model of the work directory; not called if translations are given.
    output_dir: where their scores go, if not to the work directory.
    """
    place = Path(asked.workdir).expanduser() if asked.workdir else None
    has_test_set = any(asked[name].value is not None for name in of_test_sets)
    config = run_config.load(place) if place and has_test_set else None
    if config and config.kind.score_test_set is None:
        raise UserError(
            f"{place} is a run of the task {config.task.name}, and test sets by file or name, "
            "tokenizers of BLEU and --compare are for seq2seq; give --split alone"
        )
    test = _test_set(asked, place, config)
    if asked.hypotheses:
        _score(asked, place, config, test, output_dir)
        return
    model = restore()
    if test:
        evaluate_test_set(model, test, _other(asked.compare, test.name, len(test.sources)))
        return
    check_can_evaluate(model, asked.split)
    _check_languages(asked, model.task.data)
    others = {split: None for split in asked.split}
    if asked.compare:
        for split in others:
            number = sum(1 for _ in open_source(model.task.data, split).pairs())
            others[split] = _other(asked.compare, split, number)
    for split, other in others.items():
        evaluate(model, split, other)


def _check_languages(asked: FlagValues, data: Any) -> None:
    """Raises UserError for a language where the text of a split cannot follow it."""
    for name in LANGUAGES:
        if asked[name].value:
            files = [split for split in asked.split if are_text_files(data, split)]
            if files or getattr(data, name.replace("language", "field")):
                what = f"the {files[0]} text" if files else f"data.{name[:6]}_field"
                raise UserError(
                    f"--{name} is {asked[name].value}, and {what} stays the same; give text in "
                    "these languages as --source and --reference"
                )


def _other(place: str | None, of: str, number: int) -> Other | None:
    """The translations that --compare names: a file, or what evaluate wrote for another run.

    of: the split or test set, which has `number` sentences.
    """
    if place is None:
        return None
    folder = Path(place).expanduser()
    for path in (folder / "eval" / of / HYPOTHESES, folder / HYPOTHESES, folder):
        if path.is_file():
            lines = lines_of(str(path))
            check_lines({str(path): len(lines), of: number})
            return Other(address_of(path), lines)
    raise UserError(
        f"--compare={place} is no file, and no folder with {HYPOTHESES} or eval/{of}/{HYPOTHESES}; "
        "evaluate the other run first, or name a file of translations"
    )


def _test_set(
    asked: FlagValues, workdir: Path | None, config: run_config.Config | None
) -> TestSet | None:
    """The test set that the flags name, if it is no split."""
    if asked.reference:
        return read_files(asked.source, asked.reference)
    if not asked.testset:
        return None
    languages = pair(asked.languages or "")
    if config:
        languages = [asked[name].value or getattr(config.data, name) for name in LANGUAGES]
        if config.data.is_tokenized:
            raise UserError(
                f"{workdir} reads text that is tokenised, and sacreBLEU's test sets are not; "
                "tokenise one and give it as --source and --reference"
            )
    with distributed.first_alone():
        return sacrebleu_test_set(asked.testset, *languages)


def _score(
    asked: FlagValues,
    workdir: Path | None,
    config: run_config.Config | None,
    test: TestSet | None,
    output_dir: Path | None,
) -> None:
    """Scores the translations of --hypotheses, and writes the scores if there is a place."""
    path, hypotheses = asked.hypotheses, lines_of(asked.hypotheses)
    inputs, parts = {"hypotheses": Input.of(path, hypotheses)}, [f"of-{Path(path).name}"]
    if config:
        given = {f"data.{name}": asked[name].value for name in DATA_FLAGS}
        given = {field: value for field, value in given.items() if value is not None}
        data = run_config.with_fields(config, given).data
        of = test.name if test else asked.split[0]
        more_parts, more_inputs = data_beside(config.data, data, of)
        parts, inputs = parts + more_parts, inputs | more_inputs
        task, text = config.kind, kind_of_text(data)
        if test is None:
            if not asked.trust_paths:
                trusted_paths.check(workdir, trusted_paths.unknown(config, given))
            sources, references = map(list, zip(*open_source(data, of).pairs(), strict=True))
            test = TestSet(of, sources, [references])
    else:
        task = find_task("seq2seq")
        text = {"target_language": pair(asked.languages)[1], "bleu_tokenizer": asked.bleu_tokenizer}
        parts += [f"bleu_tokenizer={asked.bleu_tokenizer}"] * bool(asked.bleu_tokenizer)
    check_lines({path: len(hypotheses), test.name: len(test.references[0])})
    if not distributed.is_first():
        return
    other = _other(asked.compare, test.name, len(hypotheses))
    destination, written = None, ""
    if workdir or output_dir:
        name = "-".join([test.name, *parts])
        destination = Destination.of(workdir, output_dir, name, {**inputs, **test.inputs})
        destination.check()
    check_language(test.references[0], **text)
    outputs = task.score_test_set(text, test, hypotheses)
    if other:
        outputs = compared(outputs, other, text)
    print(table(outputs))
    if destination:
        scores = {**outputs.scores, "split": test.name, "hypotheses": address_of(Path(path))}
        scores["examples"] = len(hypotheses)
        written = f"; scores in {destination.write(outputs, scores)}"
    print(f"{len(hypotheses)} examples{written}")
