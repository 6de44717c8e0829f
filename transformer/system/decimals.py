"""Exact arithmetic with the decimals of a config, which binary fractions only approximate."""

from fractions import Fraction


def written(value: float) -> Fraction:
    """The number as written: 7/5 for 1.4, although the float 1.4 is a little less.

    A float prints as the shortest decimal that reads back as that float: the one written.
    """
    return Fraction(str(value))
