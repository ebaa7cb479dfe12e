"""Texts that say nothing: each rule sees its fault, and none in texts that say something."""

import pytest

from dpaudit.runs.emptiness import Emptiness, EmptinessRules

REQUEST = "Short notes about Motor claims of an insurer, one a line:"
EXAMPLES = (
    "The driver reversed into a parked van outside the bakery and broke its left tail light.",
    "A stone from a lorry cracked the windscreen on the motorway, and the glass was replaced.",
    "The car was left in the rain with a window open, so that the seats had to be dried.",
    "A deer ran into the road after dark and the front of the car was damaged beyond repair.",
)
RULES = EmptinessRules([REQUEST], EXAMPLES)

#: Texts that models wrote, or that are made after theirs.
EMPTY: dict[str, Emptiness] = {
    "32:20-32-33:40. 2019-05-22. 14:00:13.": "short",
    "": "short",
    "-": "short",
    "Claim 2019-05-22, 14:00:13; 32:20-32-33:40, policy 448812, ref 99/20031, total 14,000.13": (
        "digits"
    ),
    "Motor, theft, fire, water damage, storm, glass, legal": "list",
    "1. Motor\n2. Theft\n3. Fire and water\n4. Glass\n5. Storm": "list",
    "the car was hit by the car was hit by the car was hit by the car was hit by": "repeats",
    "Here are short notes about motor claims of an insurer, one a line": "prompt",
    "A stone from a lorry cracked the windscreen on the motorway, and the glass broke.": "prompt",
    "Der Fahrer hat beim Zurücksetzen einen geparkten Wagen übersehen und dessen Tür stark "
    "beschädigt": "language",
}


@pytest.mark.parametrize("text", EMPTY)
def test_each_rule_sees_its_fault(text: str) -> None:
    assert RULES.reason(text) == EMPTY[text]


@pytest.mark.parametrize(
    "text",
    [
        "A motor claim: reversing, she hit the gate, and both lights need replacing before winter.",
        "The insured hit a gate while parking, and the bumper came off.",
        "In 2007, the company lost $12 billion to another company's bankruptcy.",
        "Water came through the roof after the storm of 14 May; the carpet and two beds are lost.",
        "More on the Super Bowl. This time, the Super Bowl was a huge one, with the Patriots",
        "He says that a motor claim was made twice.",
    ],
)
def test_no_rule_sees_a_fault_in_a_text_that_says_something(text: str) -> None:
    assert RULES.reason(text) is None


def test_a_rule_that_a_public_example_breaks_is_left_out() -> None:
    ingredients = "flour, butter, two eggs, sugar, a lemon, salt"
    assert EmptinessRules([REQUEST], EXAMPLES).reason(ingredients) == "list"
    assert (
        EmptinessRules([REQUEST], [*EXAMPLES, "milk, rice, vanilla, salt, one egg"]).reason(
            ingredients
        )
        is None
    )


def test_without_public_examples_no_language_is_expected() -> None:
    text = next(text for text, reason in EMPTY.items() if reason == "language")
    assert EmptinessRules([REQUEST], []).reason(text) is None
