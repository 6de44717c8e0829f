"""English-German sentence pairs from a small synchronous grammar.

A translation task that needs no download, is learnt in minutes on a CPU, and
still asks for what makes German hard: the verb goes second in a main clause and
last in a subordinate clause, separable verbs split, determiners and adjectives
agree with case, gender and number, and English marks almost none of it.

Every rule says the same thing in both languages at once, and nothing in the
German is left to chance that the English does not show. So German is a function
of English, and a model that has learnt the grammar translates without error.
"""

import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import tensorflow_datasets as tfds

from transformer.data.datasets import grammar_lexicon as lexicon
from transformer.data.datasets.grammar_lexicon import NOTHING, Pair, Verb

# --- 1. Phrases ---------------------------------------------------------------


class Phrase(NamedTuple):
    """A pronoun, or a noun with its determiner and adjective; German by case."""

    subject: str
    object: str
    de: dict[str, str]
    kein: dict[str, str]  # the phrase negated, if it begins with "ein" or nothing
    person: int
    gender: str  # of a pronoun: none
    kinds: str


PRONOUNS = {
    subject: Phrase(subject, object_, dict(nom=nom, acc=acc, dat=dat), {}, int(person), "", "P")
    for subject, object_, nom, acc, dat, person in lexicon.PRONOUN_ROWS
}


def number(n: int) -> Pair:
    """1 to 99 in words; German says the ones before the tens: einundzwanzig."""
    if n in lexicon.NUMBERS:
        return Pair(*lexicon.NUMBERS[n])
    tens, ones = Pair(*lexicon.NUMBERS[n // 10 * 10]), Pair(*lexicon.NUMBERS[n % 10])
    return Pair(f"{tens.en}-{ones.en}", ones.de.replace("eins", "ein") + "und" + tens.de)


def noun_phrase(
    determiner: str | int, noun: str, adjective: str = "", *, plural: bool = False
) -> Phrase:
    """A noun with "the", "a" (in the plural: nothing), "my", ... or a number from 2."""
    lexeme, plural = lexicon.NOUNS[noun], plural or isinstance(determiner, int)
    gender = "p" if plural else lexeme.gender

    def german(stem: str, endings: str, adjective_endings: str) -> dict[str, str]:
        phrases = {}
        for case in ("nom", "acc", "dat"):
            words = [stem + (lexicon.ENDINGS[endings, case][gender] if endings else "")]
            if adjective:
                _, word, _, changed = (*lexicon.ADJECTIVES[adjective], "")[:4]
                ending = lexicon.ENDINGS[adjective_endings, case][gender]
                words.append((changed or word) + ending)
            if plural:
                no_n = case != "dat" or lexeme.de_plural.endswith(("n", "s"))
                words.append(lexeme.de_plural + ("" if no_n else "n"))
            else:
                words.append(lexeme.oblique if lexeme.oblique and case != "nom" else lexeme.de)
            phrases[case] = " ".join(words).strip()
        return phrases

    if isinstance(determiner, int):
        word, german_number = number(determiner)
        de = german(german_number, "", "strong")
    elif determiner == "a" and plural:
        word, de = "", german("", "", "strong")
    else:
        plural_word, *article = lexicon.DETERMINERS[determiner]
        word, de = (plural_word if plural else determiner), german(*article)
    en = f"{adjective} {lexeme.en_plural if plural else lexeme.en}".strip()
    en = f"{'an' if word == 'a' and en[0] in 'aeiou' else word} {en}".strip()
    kein = german(*lexicon.DETERMINERS["no"][1:]) if determiner == "a" else {}
    return Phrase(en, en, de, kein, 2 if plural else 1, gender, lexeme.kinds)


def german_prepositional(preposition: str, phrase: Phrase, case: str) -> str:
    """The preposition and its object, contracted where German contracts: im, ins, vom."""
    words = f"{preposition} {phrase.de[case]}"
    for long, short in lexicon.CONTRACTIONS.items():
        words = re.sub(f"^{long}", short, words)
    return words


# --- 2. Clauses ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Clause:
    """A statement about a subject, before the words have an order.

    The tense is present, past (in German the perfect) or future; a modal replaces it.
    The adjunct is a place or, after "be", an adjective.
    """

    subject: Phrase
    verb: Verb
    object: Phrase | None = None
    recipient: Phrase | None = None
    adjunct: Pair = NOTHING
    tense: str = "present"
    modal: str = ""
    negated: bool = False
    adverb: Pair = NOTHING
    time: Pair = NOTHING


def _english_verbs(clause: Clause) -> tuple[str, str]:
    """The auxiliary with its negation, and the main verb."""
    person, base = clause.subject.person, clause.verb.en.replace("_", " ")
    negation = " not" if clause.negated else ""
    auxiliary = "will" if clause.tense == "future" else clause.modal
    if auxiliary == "want":
        auxiliary, base = "", f"want to {base}"
    if auxiliary:
        return (auxiliary + negation).replace("can not", "cannot"), base
    if base == "be":
        return lexicon.FORMS["was" if clause.tense == "past" else "be"][person] + negation, ""
    past = clause.tense == "past"
    if clause.negated:
        return ("did" if past else lexicon.FORMS["do"][person]) + negation, base
    if past:
        return "", clause.verb.past.replace("_", " ")
    if person == 1:
        first, *rest = base.split()
        first = re.sub("(?<![aeou])y$", "ie", first)
        base = " ".join([re.sub("(ch|o)$", r"\1e", first) + "s", *rest])
    return "", base


def _english_objects(clause: Clause) -> str:
    objects = [phrase.object for phrase in (clause.recipient, clause.object) if phrase]
    return " ".join([*objects, clause.adjunct.en])


def _english(clause: Clause, subject: bool = True) -> str:
    auxiliary, main = _english_verbs(clause)
    words = [clause.subject.subject if subject else "", auxiliary, clause.adverb.en, main]
    return " ".join([*words, _english_objects(clause), clause.time.en])


def _german_verbs(clause: Clause) -> tuple[str, str, str]:
    """The separable prefix of the finite verb, the finite verb, and the other verb."""
    verb, person = clause.verb, clause.subject.person
    prefix, _, stem = verb.de.rpartition("|")
    if clause.modal or clause.tense == "future":
        return "", lexicon.FORMS[clause.modal or "werden"][person], prefix + stem
    if verb.en == "be":  # "ist gewesen" is right, but nobody says it
        return "", lexicon.FORMS["war" if clause.tense == "past" else "sein"][person], ""
    if clause.tense == "past":
        return "", lexicon.FORMS[verb.auxiliary][person], verb.participle
    return prefix, (stem.removesuffix("en") + "e", verb.third, stem)[person], ""


def _german_middle(clause: Clause) -> str:
    """Everything between the finite verb and the other one, in a fixed order.

    An indefinite object is negated with "kein", everything else with "nicht".
    """
    verb, phrase = clause.verb, clause.object
    pronouns, nouns, last, nicht = [], [], "", "nicht" if clause.negated else ""
    if clause.recipient:
        (nouns if clause.recipient.gender else pronouns).append(clause.recipient.de["dat"])
    if phrase and verb.preposition:
        last = german_prepositional(verb.preposition, phrase, verb.case)
    elif phrase and phrase.kein and clause.negated:
        nouns.append(phrase.kein[verb.case[-3:]])
        nicht = ""
    elif phrase:
        (nouns if phrase.gender else pronouns).append(phrase.de[verb.case[-3:]])
    words = [*pronouns, clause.adverb.de, clause.time.de, *nouns, nicht, last]
    return " ".join([*words, clause.adjunct.de])


def main_clause(clause: Clause, front: Pair = NOTHING) -> Pair:
    """Verb second: a fronted phrase or clause drives the subject behind the verb."""
    prefix, finite, other = _german_verbs(clause)
    subject = clause.subject.de["nom"]
    first, third = (front.de, subject) if front.de else (subject, "")
    english = f"{front.en} , {_english(clause)}" if front.en else _english(clause)
    return Pair(english, f"{first} {finite} {third} {_german_middle(clause)} {prefix} {other}")


def subordinate_clause(opening: Pair, clause: Clause, subject: bool = True) -> Pair:
    """Verb last. Without `subject`, a relative pronoun is the subject."""
    prefix, finite, other = _german_verbs(clause)
    german = clause.subject.de["nom"] if subject else ""
    return Pair(
        f"{opening.en} {_english(clause, subject)}",
        f"{opening.de} {german} {_german_middle(clause)} {other} {prefix}{finite}",
    )


def infinitive_clause(opening: Pair, clause: Clause) -> Pair:
    """No subject; "zu" stands before the infinitive, but within a separable one."""
    verb = clause.verb
    infinitive = verb.de.replace("|", "zu") if "|" in verb.de else f"zu {verb.de}"
    return Pair(
        f"{opening.en} to {verb.en.replace('_', ' ')} {_english_objects(clause)}",
        f"{opening.de} {_german_middle(clause)} {infinitive}",
    )


def relative(head: Phrase, clause: Clause, *, subject: bool) -> Phrase:
    """The head with a relative clause; the head is its subject, or else its missing object."""
    case = "nom" if subject else clause.verb.case
    german = "d" + lexicon.ENDINGS["der", case][head.gender]
    if german == "den" and case == "dat":
        german = "denen"
    english = "which" if "P" not in head.kinds else "who" if subject else "whom"
    en, de = subordinate_clause(Pair(english, german), clause, subject=not subject)
    phrases = {case: f"{words} , {de} ," for case, words in head.de.items()}
    return head._replace(subject=f"{head.subject} {en}", de=phrases)


def sentence(*parts: Pair) -> Pair:
    """Joins the parts, with commas where a clause begins, and a full stop."""

    def finish(words: Iterable[str]) -> str:
        text = " ".join(" ".join(words).split()).replace(" ,", ",").replace(",,", ",")
        return text[0].upper() + text[1:].removesuffix(",") + "."

    return Pair(finish(part.en for part in parts), finish(part.de for part in parts))


# --- 3. Sampling --------------------------------------------------------------

SENTENCES = ("plain",) * 9 + ("dass",) * 3 + ("conjunction",) * 4 + ("zu", "um zu") * 2 + ("and",)
ACTIONS = ("", "acc", "acc", "dat", "dat+acc")  # cases, the frequent one twice
PLAIN = (*ACTIONS, "be")


class Sampler:
    """Draws sentences.

    It calls only `random()`, whose sequence every version of Python keeps. The other
    methods of `random.Random` promise no such thing.
    """

    def __init__(self, seed: int):
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, options: Iterable):
        options = tuple(options)
        return options[int(self._random() * len(options))]

    def word(self, words: dict, kinds: str):
        return self.pick(word for word in words.values() if set(word.kinds) & set(kinds))

    def verb(self, cases: tuple[str, ...], subjects: str = "", objects: str = "") -> Verb:
        case = self.pick(cases)
        return self.pick(
            verb
            for verb in lexicon.VERBS.values()
            if verb.case == case
            and (not subjects or set(subjects) & set(verb.subjects))
            and (not objects or (set(objects) & set(verb.objects) and not verb.preposition))
        )

    def phrase(self, kinds: str, pronouns: Iterable[str] = PRONOUNS) -> Phrase:
        if kinds == "P" and self.chance(0.25):
            return PRONOUNS[self.pick(pronouns)]
        noun = self.word(lexicon.NOUNS, kinds)
        adjective = self.word(lexicon.ADJECTIVES, noun.kinds).en if self.chance(0.35) else ""
        if self.chance(0.08):
            return noun_phrase(2 + int(self._random() * 98), noun.en, adjective)
        others = ("this", "every", "my", "his", "her", "our", "their")
        determiner = self.pick(("the",) * 8 + ("a",) * 5 + others)
        plural = self.chance(0.3) and determiner != "every"
        return noun_phrase(determiner, noun.en, adjective, plural=plural)

    def place(self) -> Pair:
        (en, de), phrase = self.pick(lexicon.PLACES.items()), self.phrase("L")
        return Pair(f"{en} {phrase.object}", german_prepositional(de, phrase, "dat"))

    def clause(self, verb: Verb, tense: str, subject: Phrase | None = None) -> Clause:
        """A clause with its objects, but without adverb and time."""
        subject = subject or self.phrase(self.pick(verb.subjects))
        # "I see me" would want a reflexive pronoun.
        others = ("he", "she", "they") if subject.subject in ("I", "we") else PRONOUNS
        modal = self.pick(lexicon.MODALS) if tense == "present" and self.chance(0.2) else ""
        adjunct = NOTHING
        if verb.case == "be":
            adjunct = Pair(*self.word(lexicon.ADJECTIVES, subject.kinds)[:2])
        elif verb.case not in ("dass", "zu") and not verb.preposition and self.chance(0.15):
            adjunct = self.place()
        return Clause(
            subject,
            verb,
            self.phrase(self.pick(verb.objects), others) if verb.objects else None,
            self.phrase("P", others) if verb.case == "dat+acc" else None,
            adjunct,
            tense,
            modal,
            negated=modal != "must" and self.chance(0.15),  # must not: darf nicht
        )

    def timed(self, clause: Clause) -> Clause:
        """Adds an adverb, or a time if it cannot be read as that of a later clause."""
        negative = clause.negated or clause.modal == "must"  # must never: darf nie
        if not negative and self.chance(0.2):
            return dataclasses.replace(clause, adverb=Pair(*self.pick(lexicon.ADVERBS.items())))
        if self.chance(0.3) and clause.verb.case not in ("dass", "zu"):
            return dataclasses.replace(clause, time=self.time(clause.tense))
        return clause

    def time(self, tense: str) -> Pair:
        return Pair(*self.pick(lexicon.TIMES[tense].items()))

    def with_relative(self, head: Phrase) -> Phrase:
        tense = self.pick(lexicon.TIMES)
        if set(head.kinds) & set("PA") and self.chance(0.5):
            verb = self.verb(("", "acc", "acc", "dat", "be"), subjects=head.kinds)
            clause = self.timed(self.clause(verb, tense, head))
            return relative(head, clause, subject=True)
        cases = ("acc", "acc", "dat") if set(head.kinds) & set("P") else ("acc",)
        clause = self.clause(self.verb(cases, objects=head.kinds), tense)
        clause = self.timed(dataclasses.replace(clause, object=None))
        return relative(head, clause, subject=False)

    def main(self, clause: Clause) -> Pair:
        """A main clause, at times with a time or a place in front."""
        if clause.time == NOTHING and self.chance(0.2):
            return main_clause(clause, self.time(clause.tense))
        if clause.adjunct == NOTHING and not clause.verb.preposition and self.chance(0.1):
            return main_clause(clause, self.place())
        return main_clause(clause)

    def sentence(self) -> Pair:
        tense, kind = self.pick(lexicon.TIMES), self.pick(SENTENCES)
        verb = self.verb((kind,) if kind in ("dass", "zu") else PLAIN)
        if kind == "um zu":
            verb = self.verb(ACTIONS, "P")
        subject = self.phrase("P") if "zu" in kind else None
        clause = self.timed(self.clause(verb, tense, subject))
        subject = clause.subject
        if subject.gender and self.chance(0.2):
            clause = dataclasses.replace(clause, subject=self.with_relative(subject))
        if kind == "dass":
            said = self.timed(self.clause(self.verb(PLAIN), self.pick(lexicon.TIMES)))
            return sentence(self.main(clause), subordinate_clause(Pair("that", ", dass"), said))
        if kind == "and":
            word = self.pick((Pair(", and", "und"), Pair(", but", ", aber")))
            second = self.timed(self.clause(self.verb(PLAIN), tense))
            return sentence(self.main(clause), word, self.main(second))
        if kind == "conjunction":
            past = tense == "past"  # and then no "if", whose past "wenn" does not translate
            en, de = self.pick(
                item for item in lexicon.CONJUNCTIONS.items() if not past or item[0] != "if"
            )
            second = self.clause(self.verb(PLAIN), "past" if past else "present")
            second = self.timed(second)
            if self.chance(0.4):
                front = subordinate_clause(Pair(en, de), second)
                return sentence(main_clause(clause, Pair(front.en, front.de + " ,")))
            opening = Pair(en, ", " + de)
            return sentence(self.main(clause), subordinate_clause(opening, second))
        if kind in ("zu", "um zu"):
            aim = self.clause(self.verb(ACTIONS, "P"), "present", subject)
            aim = dataclasses.replace(aim, negated=False)
            opening = Pair("", ",") if kind == "zu" else Pair("in order", ", um")
            return sentence(self.main(clause), infinitive_clause(opening, aim))
        return sentence(self.main(clause))


# --- 4. The TFDS builder ------------------------------------------------------

SPLITS = {"train": 20_000, "validation": 1_000, "test": 1_000}
MAX_WORDS = 18


@functools.cache
def examples() -> tuple[Pair, ...]:
    """All examples: no English sentence occurs twice, so no split shares one with another."""
    sampler, total = Sampler(seed=1706_03762), sum(SPLITS.values())
    pairs: dict[str, str] = {}
    while len(pairs) < total:
        en, de = sampler.sentence()
        if len(en.split()) <= MAX_WORDS:
            pairs[en] = de
    return tuple(Pair(en, de) for en, de in pairs.items())


class GrammarEnDe(tfds.core.GeneratorBasedBuilder):
    """Sentences of the grammar: 20,000 to train, 1,000 to validate, 1,000 to test."""

    # A sentence that changes needs a new version, or prepared data would be reused.
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.Translation(languages=("en", "de")),
            supervised_keys=("en", "de"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        ends = itertools.accumulate(SPLITS.values())
        return {
            split: self._generate_examples(end - size, end)
            for (split, size), end in zip(SPLITS.items(), ends, strict=True)
        }

    def _generate_examples(self, start: int, end: int) -> Iterator[tuple[int, dict[str, str]]]:
        for i, pair in enumerate(examples()[start:end]):
            yield i, pair._asdict()
