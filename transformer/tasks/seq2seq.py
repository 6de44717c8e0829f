"""Sequence to sequence: training, translation and scores on sentence pairs."""

import copy
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
from absl import logging

from transformer.data.batches import EvaluationBatches, PackedPairs, lengths_of
from transformer.data.cleaning import Cleaning
from transformer.data.packing import row_widths
from transformer.data.pairs import PairSource, joined
from transformer.data.sources import MAIN, DataConfig, Part, open_source, training_parts
from transformer.data.test_sets import TestSet
from transformer.data.token_cache import token_cache
from transformer.data.token_files import TokenizedPairs
from transformer.data.token_workers import PairEncoder
from transformer.data.tokenizers import FILES, TokenizerConfig, Tokenizers, get_tokenizers
from transformer.decoding.brackets import Grammar
from transformer.decoding.config import DecodingConfig
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.inputs import Request
from transformer.decoding.long_lines import LongLines
from transformer.decoding.programs import Variables
from transformer.decoding.translation import Translation, Translator, best_texts
from transformer.metrics import scores
from transformer.models.family import build_model
from transformer.models.functional import FunctionalModel, Params
from transformer.models.kernels import proven
from transformer.system import distributed
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, row_shards
from transformer.tasks import pretrained_seq2seq
from transformer.tasks.pair_training import Seq2SeqTraining, Texts, check_positions, sizes_of
from transformer.tasks.source_gain import METRICS, source_scores
from transformer.tasks.supervised import Supervised, training_batches
from transformer.tasks.task import Metric, Outputs, Task, examples, of_kind

WHOLE_UP_TO = 4  # see Seq2Seq.translate
CHECKED = 1000  # references that are searched for spaces


class Seq2Seq(Supervised):
    """A model with its vocabulary: it translates, and scores its translations.

    Tasks with other scores derive from it: see transduction.py. A task whose data are not pairs
    from text files or a data set overrides `open_source`.
    """

    open_source = staticmethod(open_source)

    @classmethod
    def training_parts(cls, data: Any) -> list[Part]:
        """The training pairs, by corpus."""
        if isinstance(data, DataConfig):
            return training_parts(data)
        return [Part(MAIN, cls.open_source(data, "train"))]

    @staticmethod
    def tags(data: Any) -> list[str]:
        """Words that the tokenizer keeps whole."""
        return data.tags if isinstance(data, DataConfig) else []

    # The default of translate.py for a line longer than the longest training source.
    long_lines = "split"
    reads_blank = False  # see Translator

    def __init__(
        self,
        data: DataConfig,
        tokenizers: Tokenizers,
        model: FunctionalModel | Ensemble,
        decoding: DecodingConfig,
        mesh: jax.sharding.Mesh,
    ):
        super().__init__(data, model, mesh)
        self.tokenizers = tokenizers.for_languages(data.languages)
        self.translator = Translator(
            *(model, self.tokenizers, decoding, mesh, self.grammar(tokenizers, decoding)),
            *(self.source_cut(data), self.reads_blank),
        )
        self.lines = self._lines()

    def _lines(self) -> LongLines:
        # The memory of a search grows with the longest sentence, and one line must not stall the
        # rest. Tasks whose lines cannot be split leave them whole.
        policy = "split" if self.long_lines == "split" else "whole"
        limit = self.data.max_source_length - 1  # the last is EOS
        return LongLines(policy, self.tokenizers.source, limit, WHOLE_UP_TO, self.target_language)

    def between(self, source_language: str, target_language: str) -> Self:
        """This task for other languages of its vocabulary; they share compiled programs.

        Raises UserError for a vocabulary without languages, or without these.
        """
        self.tokenizers.check_languages("between")
        languages = {"source_language": source_language, "target_language": target_language}
        other = copy.copy(self)
        other.data = dataclasses.replace(self.data, **languages)
        other.tokenizers = self.tokenizers.for_languages(other.data.languages)
        other.translator = copy.copy(self.translator)
        other.translator.tokenizers = other.tokenizers
        other.lines = other._lines()
        return other

    @property
    def target_language(self) -> str:
        """The code of the outputs' language; "" for no language in particular."""
        return self.data.target_language

    @staticmethod
    def grammar(tokenizers: Tokenizers, decoding: DecodingConfig) -> Grammar | None:
        """The roles of the tokens, for outputs that are trees."""
        del tokenizers, decoding

    def save(self, workdir: Path) -> None:
        self.tokenizers.save(workdir)

    def provenance(self) -> dict[str, Any]:
        """The settings of the search; fields without effect are left out."""
        decoding = self.translator.config
        settings = dataclasses.asdict(decoding)
        for field in dataclasses.fields(decoding):
            if settings[field.name] == field.default:
                del settings[field.name]
        form, alpha = decoding.length_penalty_form, settings.pop("length_penalty")
        settings.pop("length_penalty_form", None)
        if "seed" in settings:  # a result of the ledger has the training seed by that name
            settings["search_seed"] = settings.pop("seed")
        return {
            **settings,
            "length_penalty": {"name": form, "alpha": alpha},
            "tokenizer_sha256": self.tokenizers.sha256,
        }

    def translate(
        self,
        params: Params,
        extra: dict,
        sentences: Sequence[str],
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[str]:
        """The best translation of each sentence, in order.

        A sentence WHOLE_UP_TO times longer than training sources is translated in pieces.
        """
        for number, sentence in enumerate(sentences, 1):
            if self.lines.is_long(sentence) and distributed.is_first():
                logging.warning(
                    "sentence %d has more than %d tokens, %d times the longest of training; it is "
                    "translated in pieces",
                    *(number, WHOLE_UP_TO * self.lines.limit, WHOLE_UP_TO),
                )
        cut = self.translator.source_cut
        find = functools.partial(self.translator.search, (params, extra), source_cut=cut)
        return best_texts(self.lines.search(find, list(map(Request, sentences)), progress))

    def search(
        self,
        params: Params,
        extra: dict,
        requests: Sequence[Request],
        *,
        nbest: int = 1,
        alignments: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[list[Translation]]:
        """See Translator.search."""
        requests = self.searched(requests)
        return self.translator.search(
            (params, extra), requests, nbest=nbest, alignments=alignments, progress=progress
        )

    def searched(self, requests: Sequence[Request]) -> Sequence[Request]:
        """The requests as the search takes them."""
        return requests

    def score(
        self,
        params: Params,
        extra: dict,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        alignments: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Translation]:
        """See Translator.score."""
        self.check_sources(sources)
        return self.translator.score(
            (params, extra), sources, targets, alignments=alignments, progress=progress
        )

    def check_sources(self, sources: Sequence[str]) -> None:
        """Raises UserError for sources whose targets have no score."""

    def evaluate(
        self, params: Params, extra: dict, split: str, progress: Callable[[int, int], None]
    ) -> Outputs:
        with distributed.first_alone():
            source = self.open_source(self.data, split)
        sources, references = map(list, zip(*source.pairs(), strict=True))
        self.check_data(self.data, references)
        hypotheses = self.translate(
            params, extra, sources, lambda done: progress(done, len(sources))
        )
        texts = Texts(split, sources, references, hypotheses)
        found = self.scores((params, extra), texts)
        columns = {name: list(getattr(texts, name)) for name in texts._fields[1:]}
        return Outputs(columns, found, texts.examples)

    @staticmethod
    def source_cut(data: Any) -> int | None:
        """The length in tokens, EOS included, to which sources are cut; None leaves them whole."""
        del data

    @staticmethod
    def check_data(data: DataConfig, references: Sequence[str] = ()) -> None:
        """Raises UserError for data that cannot be scored; may warn about these references."""
        scores.check_language(references, **scores.kind_of_text(data))

    @staticmethod
    def check_pairs(data: Any, *splits: TokenizedPairs) -> None:
        """Raises UserError for tokenised pairs that a run cannot use."""

    def prepare(self, variables: Variables, source: PairSource) -> dict[str, jax.stages.Compiled]:
        """Compiles translation and scoring of `source`, and runs both once."""
        pieces = [piece for text, _ in source.pairs() for piece in self.lines.pieces(text)]
        return self.translator.prepare(variables, pieces)

    @staticmethod
    def text_scores(data: DataConfig, texts: Texts) -> dict[str, dict[str, Any]]:
        """The scores that need only texts, in the form of Outputs.scores."""
        return scores.corpus_scores(texts.hypotheses, texts.references, **scores.kind_of_text(data))

    def model_scores(self, variables: Variables, texts: Texts) -> dict[str, dict[str, Any]]:
        """The scores that need the model. All processes call it."""
        return {}

    def scores(self, variables: Variables, texts: Texts) -> dict[str, dict[str, Any]]:
        """All scores, in the form of Outputs.scores; those of process 0 count."""
        of_model = self.model_scores(variables, texts)
        of_model |= source_scores(self, variables, *texts[1:])
        return (self.text_scores(self.data, texts) if distributed.is_first() else {}) | of_model

    def validation_scores(self, variables: Variables, texts: Texts) -> dict[str, float]:
        """The task's metrics except nll."""
        kind = scores.kind_of_text(self.data)
        return {"bleu": scores.bleu(texts.hypotheses, texts.references, **kind)}


def prepare(
    config: Any,
    mesh: jax.sharding.Mesh,
    workdir: Path,
    begun_with: Seq2Seq | None,
    kind: type[Seq2Seq] = Seq2Seq,
) -> Seq2SeqTraining:
    """See Task. Text -> tokenizers -> token cache -> packed rows. kind: the class of the task."""
    data, seed = config.data, config.training.seed
    if data.packing and not config.family.packs:
        raise UserError(
            f"data.packing is True, but the family {config.model.family} cannot keep the pairs of "
            "a packed row apart; set data.packing to False"
        )
    # 1. Text and tokenizers. One process makes new files; the others find them.
    if not data.uses_files:
        how = f"preparing it in {data.data_dir}" if data.uses_tfds else "downloading it"
        print(f"data     {data.dataset}; {how} if new", flush=True)
    with distributed.first_alone():
        kind.check_data(data)
        parts = kind.training_parts(data)
        source = joined([part.pairs for part in parts])
        validation_source = kind.open_source(data, "validation")
        kind.check_data(data, [target for _, target in validation_source.sample(CHECKED)])
        print(f"data     {source.describe()}; tokenising them if new", flush=True)
        cleaning, tags = Cleaning.of(data), tuple(kind.tags(data))
        tokenizers = (
            begun_with.tokenizers
            if begun_with
            else get_tokenizers(workdir, config.tokenizer, source, tags, cleaning)
        ).for_languages(data.languages)
        for tag in tags:
            plain = tokenizers.source.for_language("")
            if (number := len(plain.encode(tag))) > 2:  # a space may be one of them
                print(f"note     the tokenizer takes the tag {tag} apart, into {number} tokens")
        limits = data.max_source_length, data.max_target_length
        folder = os.path.join(data.data_dir, "token_cache")
        sampling_alpha, cut = config.tokenizer.sampling_alpha, kind.source_cut(data)
        encoder = PairEncoder(tokenizers, limits, sampling_alpha, cut, cleaning, tags)
        times = config.tokenizer.num_samples
        corpora = [
            token_cache(x.pairs, encoder.for_languages(x.languages), folder, num_samples=times)
            for x in parts
        ]
        whole = PairEncoder(tokenizers, source_cut=cut)
        validation_pairs = token_cache(validation_source, whole, folder)
        if data.packing:
            check_positions(config.model.words_per_position, *corpora, validation_pairs)
        kind.check_pairs(data, *corpora, validation_pairs)

    # 2. Rows and batches.
    widths = row_widths(*lengths_of(*corpora), *limits, packing=data.packing)
    weights = [part.weight for part in parts]
    packed = PackedPairs(corpora[0], *widths, seed, data.packing, corpora[1:], weights)
    for part, pairs, share in zip(parts, corpora, packed.shares, strict=True):
        of = f"{part.name}: {share:.1%} of tokens; " if len(parts) > 1 else ""
        print(f"data     {of}{pairs.summary}", flush=True)
    width = f"{widths[0]} + {widths[1]}"
    batches = training_batches(config, packed, mesh, width)
    at_once, shards = batches.layout.rows_per_step, row_shards(mesh)
    validation = EvaluationBatches.of_pairs(
        validation_pairs, *widths, at_once, shards, packing=data.packing
    )

    # 3. The model.
    sizes = sizes_of(config, tokenizers)._replace(row_segments=packed.most_examples)
    model = build_model(proven(config.model, mesh), sizes)
    task = kind(data, tokenizers, model, config.decoding, mesh)
    hashes = [source.fingerprint, validation_source.fingerprint, *(t.sha256 for t in tokenizers)]
    names = [part.name for part in parts]
    return Seq2SeqTraining(config, task, batches, validation, validation_source, hashes, names)


def restore(config: Any, workdir: Path, kind: type[Seq2Seq] = Seq2Seq) -> Seq2Seq:
    """See Task; kind as in `prepare`."""
    tokenizers = Tokenizers.load(workdir)
    model = build_model(config.model, sizes_of(config, tokenizers))
    return kind(config.data, tokenizers, model, config.decoding, data_mesh())


def ensemble(members: Sequence[Seq2Seq]) -> Seq2Seq:
    """See Task; uses the first member's data and search."""
    first = members[0]
    model = Ensemble([member.model for member in members])
    return type(first)(first.data, first.tokenizers, model, first.translator.config, data_mesh())


def content_sha256(data: Any, split: str, kind: type[Seq2Seq] = Seq2Seq) -> str:
    """See Task; kind as in `prepare`."""
    is_train = split == "train"
    if is_train:
        source = joined([part.pairs for part in kind.training_parts(data)])
    else:
        source = kind.open_source(data, split)
    content = hashlib.sha256()
    for pair in source.pairs():
        content.update(f"{pair[0]}\n{pair[1]}\n".encode(errors="surrogatepass"))
    return content.hexdigest()


def rescore(
    data: Any, split: str, hypotheses: list[str], kind: type[Seq2Seq] = Seq2Seq
) -> dict[str, dict[str, Any]]:
    """See Task; kind as in `prepare`."""
    sources, references = map(list, zip(*kind.open_source(data, split).pairs(), strict=True))
    return kind.text_scores(data, Texts(split, sources, references, hypotheses))


def functions_of(kind: type[Seq2Seq]) -> dict[str, Callable[..., Any]]:
    """The entries of a Task that a class of tasks determines."""
    return of_kind(kind, prepare, restore, content_sha256, rescore)


def score_test_set(kind: Mapping[str, Any], test: TestSet, hypotheses: list[str]) -> Outputs:
    """Scores translations of a test set, from any system; uses those of process 0.

    kind: the keyword arguments of `scores.corpus_scores`.
    """
    texts = {"sources": test.sources} if test.sources else {}
    for number, references in enumerate(test.references, start=1):
        texts["references" if number == 1 else f"references.{number}"] = references
    texts["hypotheses"] = hypotheses
    found = {}
    if distributed.is_first():
        found = scores.corpus_scores(hypotheses, *test.references, **kind)
    shown = {"source": test.sources} if test.sources else {}
    shown |= {"reference": test.references[0], "translation": hypotheses}
    return Outputs(texts, found, examples(shown))


TASK = Task(
    sections={"data": DataConfig, "tokenizer": TokenizerConfig, "decoding": DecodingConfig},
    metrics={"nll": Metric("lower"), "bleu": Metric("higher", full=True), **METRICS},
    main_metric="bleu",
    files=FILES,
    ensemble=ensemble,
    score_test_set=score_test_set,
    pretrained=functools.partial(pretrained_seq2seq.read, kind=Seq2Seq),
    **functions_of(Seq2Seq),
)
