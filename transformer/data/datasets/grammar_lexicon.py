"""The words of the synchronous grammar, in English and in German.

In the tables a row ends at the end of a line or at a semicolon, and "-" is an empty cell.
"""

from collections.abc import Iterator
from typing import NamedTuple

# Kinds of nouns: P person, A animal, F food, T thing to carry, O thing that opens,
# V vehicle, W thing to wait for, L place. Verbs and adjectives list the kinds that
# they go with.

# English, plural, German, gender, plural, kinds, accusative and dative if changed.
_NOUNS = """
man men Mann m Männer P;                    woman women Frau f Frauen P
child children Kind n Kinder P;             girl girls Mädchen n Mädchen P
boy boys Junge m Jungen P Jungen;           student students Student m Studenten P Studenten
farmer farmers Bauer m Bauern P Bauern;     customer customers Kunde m Kunden P Kunden
teacher teachers Lehrer m Lehrer P;         doctor doctors Arzt m Ärzte P
friend friends Freund m Freunde P;          queen queens Königin f Königinnen P
mother mothers Mutter f Mütter P;           father fathers Vater m Väter P
sister sisters Schwester f Schwestern P;    brother brothers Bruder m Brüder P
aunt aunts Tante f Tanten P;                dog dogs Hund m Hunde A
cat cats Katze f Katzen A;                  horse horses Pferd n Pferde A
bird birds Vogel m Vögel A;                 cow cows Kuh f Kühe A
pig pigs Schwein n Schweine A;              mouse mice Maus f Mäuse A
apple apples Apfel m Äpfel F;               pear pears Birne f Birnen F
egg eggs Ei n Eier F;                       cake cakes Kuchen m Kuchen F
potato potatoes Kartoffel f Kartoffeln F;   sausage sausages Wurst f Würste F
book books Buch n Bücher T;                 picture pictures Bild n Bilder T
key keys Schlüssel m Schlüssel T;           chair chairs Stuhl m Stühle T
lamp lamps Lampe f Lampen T;                knife knives Messer n Messer T
letter letters Brief m Briefe TO;           bag bags Tasche f Taschen TO
door doors Tür f Türen O;                   window windows Fenster n Fenster O
car cars Auto n Autos V;                    bicycle bicycles Fahrrad n Fahrräder V
train trains Zug m Züge VW;                 bus buses Bus m Busse VW
house houses Haus n Häuser L;               garden gardens Garten m Gärten L
city cities Stadt f Städte L;               village villages Dorf n Dörfer L
school schools Schule f Schulen L;          kitchen kitchens Küche f Küchen L
church churches Kirche f Kirchen L;         forest forests Wald m Wälder L
museum museums Museum n Museen L;           office offices Büro n Büros L
"""

# English, past, German (prefix|verb if separable), third person singular, participle,
# auxiliary of the perfect, preposition, case or clause that follows, kinds of subject
# and of object.
# No verb like "read", whose past is its present: the English would not decide.
_VERBS = """
be          was           sein         ist       gewesen         sein  -    be      PAFTOVL -
sleep       slept         schlafen     schläft   geschlafen      haben -    -       PA  -
work        worked        arbeiten     arbeitet  gearbeitet      haben -    -       P   -
laugh       laughed       lachen       lacht     gelacht         haben -    -       P   -
sing        sang          singen       singt     gesungen        haben -    -       P   -
swim        swam          schwimmen    schwimmt  geschwommen     sein  -    -       PA  -
run         ran           laufen       läuft     gelaufen        sein  -    -       PA  -
get_up      got_up        auf|stehen   steht     aufgestanden    sein  -    -       P   -
wake_up     woke_up       auf|wachen   wacht     aufgewacht      sein  -    -       PA  -
fall_asleep fell_asleep   ein|schlafen schläft   eingeschlafen   sein  -    -       PA  -
arrive      arrived       an|kommen    kommt     angekommen      sein  -    -       PV  -
come_back   came_back     zurück|kommen kommt    zurückgekommen  sein  -    -       PA  -
see         saw           sehen        sieht     gesehen         haben -    acc     PA  PAFTVL
hear        heard         hören        hört      gehört          haben -    acc     PA  PAV
find        found         finden       findet    gefunden        haben -    acc     PA  PAFTV
look_for    looked_for    suchen       sucht     gesucht         haben -    acc     PA  PAFTV
eat         ate           essen        isst      gegessen        haben -    acc     PA  F
buy         bought        kaufen       kauft     gekauft         haben -    acc     P   AFTV
sell        sold          verkaufen    verkauft  verkauft        haben -    acc     P   AFTV
need        needed        brauchen     braucht   gebraucht       haben -    acc     P   FTV
carry       carried       tragen       trägt     getragen        haben -    acc     P   FT
clean       cleaned       putzen       putzt     geputzt         haben -    acc     P   TOVL
love        loved         lieben       liebt     geliebt         haben -    acc     P   PA
know        knew          kennen       kennt     gekannt         haben -    acc     P   PL
visit       visited       besuchen     besucht   besucht         haben -    acc     P   PL
forget      forgot        vergessen    vergisst  vergessen       haben -    acc     P   PT
call        called        an|rufen     ruft      angerufen       haben -    acc     P   P
fetch       fetched       ab|holen     holt      abgeholt        haben -    acc     P   P
invite      invited       ein|laden    lädt      eingeladen      haben -    acc     P   P
look_at     looked_at     an|sehen     sieht     angesehen       haben -    acc     PA  PAFTVL
open        opened        auf|machen   macht     aufgemacht      haben -    acc     P   O
close       closed        zu|machen    macht     zugemacht       haben -    acc     P   O
bring_along brought_along mit|bringen  bringt    mitgebracht     haben -    acc     P   FT
tidy_up     tidied_up     auf|räumen   räumt     aufgeräumt      haben -    acc     P   L
help        helped        helfen       hilft     geholfen        haben -    dat     PA  P
thank       thanked       danken       dankt     gedankt         haben -    dat     P   P
answer      answered      antworten    antwortet geantwortet     haben -    dat     P   P
follow      followed      folgen       folgt     gefolgt         sein  -    dat     PA  PAV
listen_to   listened_to   zu|hören     hört      zugehört        haben -    dat     PA  P
give        gave          geben        gibt      gegeben         haben -    dat+acc P   FT
show        showed        zeigen       zeigt     gezeigt         haben -    dat+acc P   ATV
send        sent          schicken     schickt   geschickt       haben -    dat+acc P   FT
bring       brought       bringen      bringt    gebracht        haben -    dat+acc P   FT
go_into     went_into     gehen        geht      gegangen        sein  in   acc     PA  L
wait_for    waited_for    warten       wartet    gewartet        haben auf  acc     PA  PW
think_of    thought_of    denken       denkt     gedacht         haben an   acc     P   PAL
talk_about  talked_about  reden        redet     geredet         haben über acc     P   PAVL
dream_of    dreamed_of    träumen      träumt    geträumt        haben von  dat     P   AFVL
play_with   played_with   spielen      spielt    gespielt        haben mit  dat     PA  A
say         said          sagen        sagt      gesagt          haben -    dass    P   -
believe     believed      glauben      glaubt    geglaubt        haben -    dass    P   -
hope        hoped         hoffen       hofft     gehofft         haben -    dass    P   -
try         tried         versuchen    versucht  versucht        haben -    zu      P   -
promise     promised      versprechen  verspricht versprochen    haben -    zu      P   -
plan        planned       planen       plant     geplant         haben -    zu      P   -
"""

# English, German, kinds, the stem if it changes before endings.
_ADJECTIVES = """
big groß AFTOVL;       small klein PAFTOVL;          old alt PATOVL
young jung PA;         new neu TOVL;                 beautiful schön PATOVL
red rot FTOV;          blue blau TOV;                green grün FTOV
black schwarz ATOV;    white weiß ATOV;              good gut PF
bad schlecht F;        heavy schwer TO;              expensive teuer FTV teur
cheap billig FTV;      dark dunkel L dunkl;          famous berühmt PL
quiet ruhig PAVL;      tired müde PA müd;            happy glücklich P
sad traurig P;         hungry hungrig PA;            clever klug PA
lazy faul PA;          friendly freundlich PA;       rich reich P
"""

# English singular and plural, German stem, its endings, those of an adjective after it.
_DETERMINERS = """
the the d der weak;      this these dies strong weak;    every - jed strong weak
a - ein ein mixed;       no - kein ein mixed;            my my mein ein mixed
his his sein ein mixed;  her her ihr ein mixed;          our our unser ein mixed
their their ihr ein mixed
"""

# The endings by case and gender; p is the plural of all three. Strong adjectives have
# no determiner with endings before them, and so show the case themselves.
_ENDINGS = """
#         nominative     accusative     dative
#         m  f  n  p     m  f  n  p     m  f  n  p
der       er ie as ie    en ie as ie    em er em en
ein       -  e  -  e     en e  -  e     em er em en
strong    er e  es e     en e  es e     em er em en
mixed     er e  es en    en e  es en    en en en en
weak      e  e  e  en    en e  e  en    en en en en
"""

# English subject and object, German in three cases, person: 0 is "I", 1 the third
# person singular, 2 every plural. The forms below are in this order.
_PRONOUNS = """
I me ich mich mir 0;     he him er ihn ihm 1;            she her sie sie ihr 1
we us wir uns uns 2;     they them sie sie ihnen 2
"""
_FORMS = """
be am is are;            was was was were;               do do does do
sein bin ist sind;       war war war waren;              haben habe hat haben
werden werde wird werden
can kann kann können;    must muss muss müssen;          want will will wollen
should sollte sollte sollten
"""

_NUMBERS = """
one eins; two zwei; three drei; four vier; five fünf; six sechs; seven sieben; eight acht
nine neun; ten zehn; eleven elf; twelve zwölf; thirteen dreizehn; fourteen vierzehn
fifteen fünfzehn; sixteen sechzehn; seventeen siebzehn; eighteen achtzehn
nineteen neunzehn; twenty zwanzig; thirty dreißig; forty vierzig; fifty fünfzig
sixty sechzig; seventy siebzig; eighty achtzig; ninety neunzig
"""
MODALS = ("can", "must", "want", "should")
TIMES = {
    "present": {"today": "heute", "now": "jetzt", "on Monday": "am Montag"},
    "past": {"yesterday": "gestern", "last week": "letzte Woche", "on Friday": "am Freitag"},
    "future": {"tomorrow": "morgen", "next week": "nächste Woche", "on Sunday": "am Sonntag"},
}
ADVERBS = {"always": "immer", "often": "oft", "sometimes": "manchmal", "never": "nie"}
PLACES = {"in": "in", "behind": "hinter", "in front of": "vor", "next to": "neben"}
CONJUNCTIONS = {"because": "weil", "although": "obwohl", "before": "bevor", "if": "wenn"}
CONTRACTIONS = {"in dem ": "im ", "in das ": "ins ", "von dem ": "vom "}


class Pair(NamedTuple):
    """The same words in both languages."""

    en: str
    de: str


class Noun(NamedTuple):
    en: str
    en_plural: str
    de: str
    gender: str
    de_plural: str
    kinds: str
    oblique: str = ""


class Adjective(NamedTuple):
    en: str
    de: str
    kinds: str
    stem: str = ""


class Verb(NamedTuple):
    en: str
    past: str
    de: str
    third: str
    participle: str
    auxiliary: str
    preposition: str
    case: str
    subjects: str
    objects: str


def _rows(table: str) -> Iterator[list[str]]:
    for row in table.strip().replace(";", "\n").splitlines():
        if not row.startswith("#"):
            yield ["" if cell == "-" else cell for cell in row.split()]


NOTHING = Pair("", "")
NOUNS = {row[0]: Noun(*row) for row in _rows(_NOUNS)}
VERBS = {row[0]: Verb(*row) for row in _rows(_VERBS)}
ADJECTIVES = {row[0]: Adjective(*row) for row in _rows(_ADJECTIVES)}
DETERMINERS = {singular: row for singular, *row in _rows(_DETERMINERS)}
PRONOUN_ROWS = tuple(_rows(_PRONOUNS))
FORMS = {word: row for word, *row in _rows(_FORMS)}
NUMBERS = dict(zip((*range(1, 20), *range(20, 100, 10)), _rows(_NUMBERS), strict=True))
ENDINGS = {
    (name, case): dict(zip("mfnp", endings[first : first + 4], strict=True))
    for name, *endings in _rows(_ENDINGS)
    for case, first in (("nom", 0), ("acc", 4), ("dat", 8))
}
