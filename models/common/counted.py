"""Writes a number with its noun, in the singular or the plural."""


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, such as `1 row` or `2,500 rows`.

    Args:
        number: the number.
        noun: the noun in the singular, whose plural ends in `s`; words may precede it.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
