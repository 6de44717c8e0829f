"""One definition of a word, wherever words are counted or cut; lines in are lines out."""

import io
import json

import pytest
from ml_collections import ConfigDict

from configs import parsing_paper, summarization
from transformer.data import extraction, summaries, test_sets
from transformer.data.marian_vocabulary import MarianTokenizer, to_bytes
from transformer.data.penn_words import penn_words
from transformer.data.records import Records
from transformer.data.sentencepiece import train_sentencepiece
from transformer.data.subword_nmt import train_subword_nmt
from transformer.data.text_files import lines_as_they_come
from transformer.data.treebank import TreebankConfig, TreePairs
from transformer.data.trees import Tree, linearised, read_trees
from transformer.data.words import words_of
from transformer.decoding.long_lines import Cutter, join
from transformer.decoding.translation import Translation
from transformer.decoding.word_alignment import words_of_tokens
from transformer.inference.formats import Answer, translation_lines
from transformer.metrics.accuracy import corpus_accuracies
from transformer.metrics.summary_scores import sentences
from transformer.reports import translations
from transformer.runs.outputs import Destination
from transformer.tasks.mending import is_well_formed, repaired
from transformer.tasks.task import Outputs

# No-break, ideographic and thin space; line separator, next line, vertical tab, form feed, file
# separator. Python's `split` cuts at each of them, and `splitlines` at the last five.
INSIDE = ["\u00a0", "\u3000", "\u2009", "\u2028", "\u0085", "\x0b", "\x0c", "\x1c"]
each_inside = pytest.mark.parametrize("c", INSIDE, ids=[f"U+{ord(c):04X}" for c in INSIDE])


@pytest.mark.parametrize("blank", [" ", "\t", "\n", " \t \n "])
def test_blanks_part_words(blank):
    assert words_of(f"{blank}ab{blank}c{blank}") == ["ab", "c"]
    assert words_of(blank) == words_of("") == []
    assert penn_words(f"ab,{blank}c.") == ["ab", ",", "c", "."]
    assert list(read_trees([f"(S{blank}(NN{blank}ab){blank})"], "x")) == [
        Tree("S", (Tree("NN", (), "ab"),))
    ]


@each_inside
def test_other_characters_are_parts_of_words(c, tmp_path):
    word = f"10{c}000"
    assert words_of(f"{word} {c} a") == [word, c, "a"]
    assert penn_words(f"({word}, a.") == ["(", word, ",", "a", "."]
    # Trees and their sequences.
    tree = Tree(f"N{c}", (Tree("CD", (), word), Tree("NN", (), "a")))
    (tmp_path / "a.trees").write_bytes(f"{tree}\n{tree}\n".encode())
    fields = parsing_paper.get_config().data.to_dict() | {"tags": "gold"}
    fields |= {"raw_dir": str(tmp_path), "test_trees": "a.trees"}
    config = TreebankConfig(**fields)
    source = TreePairs(config, "test")
    assert source.trees == [tree, tree]
    ((sentence, sequence), _) = source.pairs()
    assert len(words_of(sentence)) == 2  # what the rule of brackets counts
    assert is_well_formed(words_of(sequence), 2)
    assert repaired(words_of(sequence), [word, "a"]) == tree
    assert linearised(tree, with_tags=False) == [f"(N{c}", "XX", "XX", f")N{c}"]
    # Scores.
    assert corpus_accuracies([word], [word.replace(c, " ")])["accuracy"]["score"] == 0
    assert sentences(f"Mr.{c}A. B.", " ") == [f"Mr.{c}A.", "B."]
    # Texts that are cut.
    assert extraction.extract("t", [f"{word} a b"], 3) == f"t {word} a"
    assert [*translations.groups([f"{word} a"], [1, 2, 3])] == ["2-2"]
    cutter = Cutter(lambda texts: [len(text.split(" ")) for text in texts], 2)
    assert cutter.pieces(f"a b.{c}c, d e{c}f g") == [f"a b.{c}c,", f"d e{c}f", "g"]
    assert cutter.first(f"a b{c}c d") == f"a b{c}c"


@each_inside
def test_alignments_number_the_words_between_blanks(c):
    """Of a line that was cut, too."""
    texts = [f"a 10{c}000 b", f"x{c}y z"]
    tokenizer = train_sentencepiece(texts * 9, vocab_size=275, model_type="bpe")
    for text in texts:
        ids = tokenizer.encode(text)
        assert max(words_of_tokens(tokenizer, ids)) == len(words_of(text)) - 1
        for token, number in zip(ids, words_of_tokens(tokenizer, ids), strict=True):
            letter = tokenizer.decode([token]).strip()
            assert not letter.isalnum() or letter in words_of(text)[number]
    first = Translation(f"A{c}A a.", 0.0, 0.0, [], [], [(0, 0), (1, 1)])
    last = Translation("B.", 0.0, 0.0, [], [], [(0, 0)])
    (whole,) = join([[first], [last]], [f"a{c}a b.", "b."], f"a{c}a b. b.", "en")
    assert whole.alignment == [(0, 0), (1, 1), (2, 2)]


MODEL = train_sentencepiece(["ab 7", "ab ü", "ü 7 7"] * 9, vocab_size=269, model_type="bpe")
MARIAN = MarianTokenizer(to_bytes(MODEL.pieces, MODEL.model_bytes))
NMT = train_subword_nmt(["abab ab ba", "abab ab"] * 9, num_merges=2)


@pytest.mark.parametrize("tokenizer", [MODEL, MARIAN], ids=["ours", "marian"])
@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        (["▁", "a", "b", "▁", "7", "7", "▁", "ü"], [0, 0, 0, 1, 1, 1, 2, 2]),
        (["▁", "7"], [0, 0]),
        (["▁", "▁", "7", "▁", "▁", "a"], [0, 0, 0, 1, 1, 1]),
        (["a", "▁", "</s>", "7"], [0, 0, 0, 0]),  # nothing follows
        (["▁", "<0xC3>", "<0xBC>", "▁", "<0xC3>", "<0xBC>", "b"], [0, 0, 0, 1, 1, 1, 1]),
        (["▁"], [0]),
        ([], []),
    ],
)
def test_a_lone_mark_begins_the_next_word(tokenizer, pieces, numbers):
    ids = [tokenizer.pieces.index(piece) for piece in pieces]
    assert words_of_tokens(tokenizer, ids) == numbers


def test_words_of_symbols():
    ids = NMT.encode("abab ba ab")
    assert [NMT.pieces[i] for i in ids] == ["a@@", "bab", "b@@", "a", "ab"]
    assert words_of_tokens(NMT, ids) == [0, 0, 1, 1, 2]


@each_inside
def test_lines_in_are_lines_out(c, tmp_path):
    lines = [f"a{c}b", f"{c}a", f"b{c}", "", f"a {c} b"]
    path, word = tmp_path / "text", f"a{c}b"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    # Sources, references, hypotheses.
    test = test_sets.read_files(str(path), [str(path), str(path)])
    assert [test.sources, *test.references] == [lines] * 3
    assert list(lines_as_they_come(io.BytesIO(path.read_bytes()), "x")) == lines
    texts = dict.fromkeys(("sources", "references", "hypotheses"), lines)
    Destination(tmp_path / "eval", "test").write(Outputs(texts, {}, ""), {})
    assert translations.read(tmp_path, "test") == ("test", lines, lines, lines)
    # Columns, and records.
    (tmp_path / "tsv").write_bytes("".join(f"{line}\t1\n" for line in lines).encode())
    rows = Records([str(tmp_path / "tsv")], {"text_field": "1", "label_field": "2"})
    assert list(rows.texts()) == [(line, "1") for line in lines]
    record = {"document": f"{word}\r\n{c} b", "summary": f"x{c}y"}
    (tmp_path / "x.json").write_text(json.dumps(record) + "\n")
    fields = ConfigDict(summarization.get_data()).to_dict()
    fields |= {"train_file": str(tmp_path / "x.json"), "line_break": "|", "dataset": None}
    fields |= {"document_field": "document", "summary_field": "summary"}
    data = summaries.SummaryData(**fields)
    assert list(summaries.open_summaries(data, "train").pairs()) == [(f"{word}|b", f"x{c}y")]
    # What is written for a line.
    found = [Translation(word, 0.0, 0.0, [], [], [(0, 0)])]
    for form in ("text", "tsv", "json"):
        written = translation_lines(Answer(1, word, found), form, 1, alignments=True)
        assert written.count("\n") == 1
        assert word in written.replace(json.dumps(c)[1:-1], c)


def test_a_text_with_line_feeds_is_one_line_of_outputs(tmp_path):
    """Texts to be classified may have them."""
    texts = {"sources": ["a\nb", "c"], "references": ["d", "e"], "hypotheses": ["\r", "f\rg"]}
    Destination(tmp_path / "eval", "test").write(Outputs(texts, {}, ""), {})
    read = translations.read(tmp_path, "test")
    assert (read.sources, read.references) == (["a b", "c"], ["d", "e"])
    assert read.hypotheses[1:] == ["f\rg"]
