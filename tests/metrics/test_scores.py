import math

import pytest
import sacrebleu

from transformer.metrics import scores
from transformer.metrics.scores import bleu, check_language, corpus_scores, split_compounds
from transformer.system.errors import UserError

# Few and German: quotes, an abbreviation, compounds, a span of years, a number at the end.
REFERENCES = [
    "Der Rot-Kreuz-Wagen fährt von 2010-2014 schnell zum Krankenhaus.",
    "„Das ist z.B. ein Test-Satz“, sagte Frau Müller-Lüdenscheidt.",
    "Wir sehen uns am Haus Nummer 10.",
]
HYPOTHESES = [
    "Der Rot-Kreuz-Bus fährt von 2010-2013 sehr schnell zum Krankenhaus.",
    "„Das ist z.B. ein Test-Text“, sagte Herr Müller-Meier.",
    "wir sehen uns am Haus Nummer 10.",
]
PAPER, PAPER_LOWERCASE = (
    "bleu_tokenized_compound_split",
    "bleu_tokenized_compound_split_lowercase",
)


def test_bleu_counted_by_hand():
    hypotheses = ["the cat sat on the mat", "a dog"]
    references = ["the cat sat on a mat", "a dog barks loudly"]
    # Matches of n-grams: 5 of 6 and 2 of 2 ("the" counts once); 3 of 5 and 1 of 1;
    # 2 of 4; 1 of 3. 8 words for 10: brevity penalty exp(1 - 10/8).
    expected = 100 * math.exp(-1 / 4) * (7 / 8 * 4 / 6 * 2 / 4 * 1 / 3) ** (1 / 4)
    assert expected == pytest.approx(43.48783, abs=1e-5)
    found = corpus_scores(hypotheses, references, target_language="en")
    for name in ("bleu", PAPER, PAPER_LOWERCASE):
        assert found[name]["score"] == pytest.approx(expected)


def test_signatures():
    found = corpus_scores(HYPOTHESES, REFERENCES, target_language="de")
    tail = f"version:{sacrebleu.__version__}"
    assert {name: s["signature"] for name, s in found.items() if "signature" in s} == {
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{tail}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{tail}",
        "ter": f"nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|{tail}",
    }


def test_tokenised_bleu_is_another_number():
    found = corpus_scores(HYPOTHESES, REFERENCES, target_language="de")
    assert found["bleu"]["score"] == pytest.approx(57.30, abs=0.005)
    # What the perl scripts of Moses (tokenizer.perl of 2017, multi-bleu.perl) print.
    assert found[PAPER]["score"] == pytest.approx(56.70, abs=0.005)
    assert found[PAPER_LOWERCASE]["score"] == pytest.approx(59.84, abs=0.005)
    assert found[PAPER]["definition"].startswith("cased BLEU")
    assert found[PAPER_LOWERCASE]["definition"].startswith("lower-cased BLEU")
    assert "not comparable with sacreBLEU" in found[PAPER]["definition"]
    assert "signature" not in found[PAPER]


def test_only_sacrebleu_smooths():
    # No three words in a row match: 4/5, 2/4, 0/3, 0/2. sacreBLEU takes 0/3 for half a match
    # and 0/2 for a quarter.
    found = corpus_scores(["the cat sat on mats"], ["the cat lay on mats"], target_language="en")
    assert found["bleu"]["score"] == pytest.approx(100 * (4 / 5 * 2 / 4 / 6 / 8) ** (1 / 4))
    assert found[PAPER]["score"] == 0


def test_tokens_are_those_of_moses():
    assert scores.tokenize_and_split_compounds(HYPOTHESES, "de") == [
        "Der Rot ##AT##-##AT## Kreuz ##AT##-##AT## Bus fährt von "
        "2010 ##AT##-##AT## 2013 sehr schnell zum Krankenhaus .",
        '„ Das ist z.B. ein Test ##AT##-##AT## Text " , sagte Herr Müller ##AT##-##AT## Meier .',
        "wir sehen uns am Haus Nummer 10.",
    ]
    # Quotes and dots of one side written otherwise than those of the other still match,
    # and nothing is escaped.
    assert scores.tokenize_and_split_compounds(["It’s “A & B”…"], "en") == ['It \'s " A & B " ...']


@pytest.mark.parametrize(
    ("tokens", "split"),  # as perl prints them
    [
        ("ein Test-Satz .", "ein Test ##AT##-##AT## Satz ."),
        ("2010-2014", "2010 ##AT##-##AT## 2014"),
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("ä-ö-ü", "ä ##AT##-##AT## ö ##AT##-##AT## ü"),
        ("a--b", "a ##AT##-##AT## -b"),
        ("a - b -c d-", "a - b -c d-"),
        ("", ""),
    ],
)
def test_split_compounds(tokens, split):
    assert split_compounds(tokens) == split


def test_an_empty_hypothesis_counts():
    references = ["the cat sat on the mat", "a dog barks loudly at me"]
    # All that is there matches, so what is left is the brevity penalty, 6 words for 12.
    half = corpus_scores([references[0], ""], references, target_language="en")
    for name in ("bleu", PAPER, PAPER_LOWERCASE):
        assert half[name]["score"] == pytest.approx(100 * math.exp(1 - 12 / 6))
    nothing = corpus_scores(["", ""], references, target_language="en")
    expected = {"bleu": 0, "chrf": 0, "ter": 100, PAPER: 0, PAPER_LOWERCASE: 0}
    assert {name: s["score"] for name, s in nothing.items()} == expected


def test_chinese_is_cut_into_characters():
    hypotheses, references = ["我喜欢猫。", "他在家里看书"], ["我喜欢猫。", "他在家里读书"]
    found = corpus_scores(hypotheses, references, target_language="zh-CN")
    assert set(found) == {"bleu", "chrf", "ter"}  # Moses finds no words
    assert "|tok:zh|" in found["bleu"]["signature"]
    assert "|asian:yes|" in found["ter"]["signature"]
    assert found["ter"]["score"] == pytest.approx(100 * 1 / 11)
    # 10 of 11 characters, 7 of 9 pairs, 5 of 7 and 3 of 5.
    expected = 100 * (10 / 11 * 7 / 9 * 5 / 7 * 3 / 5) ** (1 / 4)
    assert found["bleu"]["score"] == pytest.approx(expected)
    assert bleu(hypotheses, references, target_language="zh") == pytest.approx(expected)


# Two of five characters differ, so that no score is 0 or 100 if characters are counted.
CHINESE = ["我很喜欢猫", "他在家里看书"], ["我很讨厌猫", "他在家里读书"]


@pytest.mark.parametrize("code", ["zh_Hant", "ZHO", "yue"])
def test_every_code_of_chinese_is_chinese(code):
    expected = corpus_scores(*CHINESE, target_language="zh")
    assert corpus_scores(*CHINESE, target_language=code) == expected
    assert bleu(*CHINESE, target_language=code) == expected["bleu"]["score"] > 10


def test_every_code_of_german_is_german():
    """Moses keeps the dots of a language's own abbreviations."""
    texts = ["Es gibt u.a. ca. 3 Katzen."], ["Es gibt u.a. ca. 4 Katzen."]
    expected = corpus_scores(*texts, target_language="de")
    assert expected != corpus_scores(*texts, target_language="xx")
    for code in ("ger", "de_AT"):
        assert corpus_scores(*texts, target_language=code) == expected


@pytest.mark.parametrize("code", ["th", "dzo"])
def test_a_language_without_spaces_wants_a_tokenizer(code):
    texts = ["ผมชอบแมวดำ"], ["ผมชอบแมวขาว"]
    for use in (check_language, lambda **kind: bleu(*texts, **kind)):
        with pytest.raises(UserError, match=rf"{code} has no spaces.*bleu_tokenizer.* to char or"):
            use(target_language=code)
        use(target_language=code, is_tokenized=True)
    found = corpus_scores(*texts, target_language=code, bleu_tokenizer="char")
    assert set(found) == {"bleu", "chrf"}  # the others cannot tell words apart
    assert "|tok:char|" in found["bleu"]["signature"]
    # Of ten characters eight are in the reference, which has eleven; 7 of 9 pairs, 6 of 8, 5 of 7.
    expected = 100 * math.exp(1 - 11 / 10) * (8 / 10 * 7 / 9 * 6 / 8 * 5 / 7) ** (1 / 4)
    assert found["bleu"]["score"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("references", "kind", "is_warned_of"),
    [
        (CHINESE[1], {"target_language": "target"}, True),
        (["ผมชอบแมว", "ဗမာ", "ខ្មែរ", "ລາວ"], {"target_language": "en"}, True),
        (CHINESE[1], {"target_language": "zh"}, False),
        (CHINESE[1], {"target_language": "cn", "is_tokenized": True}, False),
        (CHINESE[1], {"target_language": "cn", "bleu_tokenizer": "13a"}, False),
        (["나는 책을 산다", "이것은 (책) 이다"], {"target_language": "xx"}, False),
        ([*REFERENCES, "我"], {"target_language": "xx"}, False),
        ([], {"target_language": "xx"}, False),
    ],
)
def test_text_without_spaces_is_seen(references, kind, is_warned_of, caplog):
    with caplog.at_level("WARNING", logger="absl"):
        check_language(references, **kind)
    said = "data.target_language (--languages without a run) to its code, such as zh or th"
    assert (said in caplog.text) == is_warned_of


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (
            "13b",
            r"data.bleu_tokenizer is '13b'; it must be one of sacreBLEU's: none, zh, 13a, intl",
        ),
        (
            "ko-mecab",
            r'tokenizer ko-mecab needs packages: pip install "sacrebleu\[ko\]"; or set data.b',
        ),
        (
            "flores200",
            r"flores200 cannot be used \(no network\); run this once on a machine with a n",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_used(tokenizer, message, monkeypatch):
    def fail(*_):
        raise OSError("no\nnetwork")

    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ko_mecab.MeCab", None)
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", "nowhere")
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", fail)
    with pytest.raises(UserError, match=message):
        check_language(target_language="de", bleu_tokenizer=tokenizer)


def test_a_blank_reference_beside_another_is_none():
    """As in sacreBLEU, in each score; whichever file has it."""
    first, second = ["the cat sat on a mat", "a dog", ""], ["the cat lay on the mat", " ", ""]
    hypotheses = ["the cat sat on the mat", "a", ""]
    found = corpus_scores(hypotheses, first, second, target_language="en")
    given = [first, ["the cat lay on the mat", None, ""]]
    expected = {
        "bleu": sacrebleu.corpus_bleu(hypotheses, given).score,
        "chrf": sacrebleu.corpus_chrf(hypotheses, given).score,
        "ter": sacrebleu.corpus_ter(hypotheses, given).score,
        PAPER: sacrebleu.corpus_bleu(hypotheses, given, "none", tokenize="none", force=True).score,
    }
    assert {name: found[name]["score"] for name in expected} == expected
    assert found["bleu"]["signature"].startswith("nrefs:var|")
    # An empty reference would be nearer to the length of "a", and spare the brevity penalty.
    assert found["ter"]["score"] == pytest.approx(100 * 2 / 8)
    swapped = corpus_scores(hypotheses, second, first, target_language="en")
    assert {n: s["score"] for n, s in swapped.items()} == {n: s["score"] for n, s in found.items()}


@pytest.mark.parametrize("score", [bleu, corpus_scores])
def test_wrong_input(score):
    with pytest.raises(ValueError, match="2 hypotheses for 3 references"):
        score(HYPOTHESES[:2], REFERENCES, target_language="de")
    with pytest.raises(UserError, match="no sentences to score"):
        score([], [], target_language="de")


@pytest.mark.parametrize(
    ("language", "hypothesis", "reference", "expected"),
    [
        # Two of eight characters, two of seven; without the options for Asian text one word of one.
        ("zh-CN", "我喜欢机器学习。", "我喜欢机器翻译。", 100 * 2 / 8),
        ("ja", "私は本を読む。", "私は本を買う。", 100 * 2 / 7),
        ("ko", "나는 책을 읽는다", "나는 책을 산다", 100 * 1 / 3),  # has spaces
    ],
)
def test_ter_counts_what_can_be_told_apart(language, hypothesis, reference, expected):
    metric = scores._ter_metric(language, is_tokenized=False)
    assert metric.corpus_score([hypothesis], [[reference]]).score == pytest.approx(expected)
    # Of text that is tokenised already, the tokens.
    metric = scores._ter_metric(language, is_tokenized=True)
    assert metric.corpus_score(["我 喜欢 你"], [["我 喜欢 他"]]).score == pytest.approx(100 / 3)
