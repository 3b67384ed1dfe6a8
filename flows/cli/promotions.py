"""`millrace release --dry-run`: the promotion card of each version that waits, as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.flows import console
from millrace.flows.cli.command_setup import prepare
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.tasks.reports.promotion_card import PromotionCard


def show_promotions(*, as_json: bool) -> None:
    """Print what the next promotion of each model would change."""
    chosen = prepare()
    with console.reserve_stdout(), report_while("replaying the recorded requests"):
        from millrace.tasks.promotion_cards import promotion_cards

        cards = list(promotion_cards(chosen.installation()))
    if as_json:
        console.print_json(cards)
    else:
        print_cards(cards)


def print_cards(cards: Sequence["PromotionCard"]) -> None:
    """Print a table for each version that waits."""
    for card in cards:
        console.print_table(
            f"{card.model}: if version {card.candidate.version} is promoted", card.head, card.rows
        )
        for note in card.notes:
            console.print_hint(note, label="note")
        if card.refusal:
            console.print_hint(f"a release refuses it: {card.refusal}", label="note")
        console.print_hint(f"`{card.next_step}`")
    if not cards:
        console.print_hint("no version waits: no champion or challenger that is not live")
