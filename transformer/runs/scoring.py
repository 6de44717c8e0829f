"""Scores what evaluate is given: splits, a test set, or existing translations."""

import os
from collections.abc import Callable
from pathlib import Path

from absl.flags import FlagValues

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
from transformer.system.errors import UserError
from transformer.tasks import seq2seq

DATA_FLAGS = ("data_dir", "raw_dir", "test_file", "bleu_tokenizer")  # of the data section


def run(asked: FlagValues, restore: Callable[[], TrainedModel], output_dir: Path | None) -> None:
    """Scores what the flags of evaluate ask for, which go together.

    restore: returns the model of the work directory; not called if translations are given.
    output_dir: where their scores go, if not to the work directory.
    """
    workdir = asked.workdir and os.path.expanduser(asked.workdir)
    only = asked.source, asked.reference, asked.testset, asked.hypotheses, asked.bleu_tokenizer
    is_for_seq2seq = any(x is not None for x in only)
    config = run_config.load(Path(workdir)) if workdir and is_for_seq2seq else None
    if config:
        check_task(Path(workdir), config)
    test = None
    if asked.reference:
        test = read_files(asked.source, asked.reference)
    elif asked.testset:
        languages = pair(asked.languages or "")
        if config:
            languages = config.data.source_language, config.data.target_language
            if config.data.is_tokenized:
                raise UserError(
                    f"{workdir} reads text that is tokenised, and sacreBLEU's test sets are not; "
                    "tokenise one and give it as --source and --reference"
                )
        with distributed.first_alone():
            test = sacrebleu_test_set(asked.testset, *languages)
    if asked.hypotheses:
        _score(asked, workdir and Path(workdir), config, test, output_dir)
        return
    model = restore()
    if test:
        evaluate_test_set(model, test)
    else:
        check_can_evaluate(model, asked.split)
        for split in asked.split:
            evaluate(model, split)


def _score(
    asked: FlagValues,
    workdir: Path | None,
    config: run_config.Config | None,
    test: TestSet | None,
    output_dir: Path | None,
) -> None:
    """Scores the translations of --hypotheses, and writes the scores if there is a place."""
    hypotheses = lines_of(asked.hypotheses)
    inputs = {"hypotheses": Input.of(asked.hypotheses, hypotheses)}
    parts = [f"of-{Path(asked.hypotheses).name}"]
    if config:
        given = {f"data.{name}": asked[name].value for name in DATA_FLAGS}
        given = {field: value for field, value in given.items() if value is not None}
        data = run_config.with_fields(config, given).data
        of = test.name if test else asked.split[0]
        parts += parts_of_data(config.data, data, of)
        inputs |= inputs_of_data(config.data, data, of)
        kind = kind_of_text(data)
        if test is None:
            if not asked.trust_paths:
                trusted_paths.check(workdir, trusted_paths.unknown(config, given))
            sources, references = map(list, zip(*open_source(data, of).pairs(), strict=True))
            test = TestSet(of, sources, [references])
        if output_dir:
            inputs["workdir"] = Input(trusted_paths.absolute(str(workdir)))
    else:
        kind = {"target_language": pair(asked.languages)[1], "bleu_tokenizer": asked.bleu_tokenizer}
        parts += [f"bleu_tokenizer={asked.bleu_tokenizer}"] * bool(asked.bleu_tokenizer)
    check_lines({asked.hypotheses: len(hypotheses), test.name: len(test.references[0])})
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
        scores = {**outputs.scores, "split": test.name, "hypotheses": asked.hypotheses}
        scores["examples"] = len(hypotheses)
        written = f"; scores in {write_outputs(place, name, outputs, scores, inputs)}"
    print(f"{len(hypotheses)} examples{written}")
