"""Words, as they are counted and cut everywhere here: the text between ASCII blanks.

A blank is a space, a tab or a line feed, as for awk. No-break, thin and ideographic spaces, form
feeds and Unicode's line ends are part of a word, although Python's `str.split` and `\\s` cut there.
So "10 000" with a no-break space is one word. A line of white space of any kind is still blank.
"""

from collections.abc import Callable

BLANKS = " \t\n"
NOT_BLANK = f"[^{BLANKS}]"  # a regular expression


def words_of(text: str) -> list[str]:
    """
    >>> words_of("10\\u00a0000  Menschen\\tda ")
    ['10\\xa0000', 'Menschen', 'da']
    """
    return [word for word in text.replace("\t", " ").replace("\n", " ").split(" ") if word]


class Characters(dict):
    """For `str.translate`: what a function makes of each character, computed once."""

    def __init__(self, of: Callable[[str], str]):
        super().__init__()
        self._of = of

    def __missing__(self, code: int) -> str:
        return self.setdefault(code, self._of(chr(code)))
