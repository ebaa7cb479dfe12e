"""Plans as they are shown."""

from __future__ import annotations

from dpaudit.reports.planning import headline, menu_lines
from dpaudit.results.plan import Menu, Offer


def test_an_epsilon_has_the_form_of_the_claim_on_every_line() -> None:
    """A claim is stated exactly, so its 2.8076 is not 2.808 elsewhere."""
    offer = Offer(
        name="many",
        texts=24,
        rounds=1,
        records=32,
        contexts=32,
        examples=1,
        influence=1.0,
        epsilon=2.8076,
        batch_epsilon=12.3457,
        attack=None,
        batch_attack=None,
    )
    menu = Menu(records=1200, labels=2, tokens=40, epsilon=3.0, offers=(offer,))
    many = dict(menu_lines(menu))["many"]
    assert "2.8076" in headline(menu, 24, 2.8076) and "2.8076" in many and "12.3457" in many
