"""Writes numbers for people: with a noun in the singular or the plural, and short."""


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, such as `1 row` or `2,500 rows`.

    Args:
        number: the number.
        noun: the noun in the singular, whose plural ends in `s`; words may precede it.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short(value: float) -> str:
    """Return a number with three digits or, from 1,000, as a whole number: `0.12`, `5,340`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
