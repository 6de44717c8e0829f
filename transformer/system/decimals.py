"""Exact arithmetic with the decimals of a config, which binary fractions only come near."""

from fractions import Fraction


def written(value: float) -> Fraction:
    """The number that was written: 7/5 for 1.4, although the float 1.4 is a little less.

    A float prints as the shortest decimal that is read as that float, which is the one written.
    """
    return Fraction(str(value))
