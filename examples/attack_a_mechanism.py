"""Attack a sampler that is colder than it says: find texts beyond what accounting allows."""

import numpy as np
import torch

from dpaudit.generation.attack import attack, declared_step
from dpaudit.mechanisms import Mechanism, Median, TopClippedLogits

declared = Mechanism(contribution=TopClippedLogits(clip=6.0), aggregator=Median(), temperature=1.0)


class Contexts:
    """Eight contexts and a canary over 40 tokens; yours would run a model."""

    def __init__(self, text=()):
        self.text = text

    @property
    def logits(self):
        """Return the raw logits [9, 40] of the next token."""
        generator = np.random.default_rng((1, *self.text))
        return torch.tensor(
            12 * generator.random(40) + 3 * generator.random((9, 40)), dtype=torch.float32
        )

    def append(self, token):
        """Go on with a token."""
        self.text += (token,)

    def fork(self):
        """Return a copy that goes its own way."""
        return Contexts(self.text)


def colder(logits, support):
    """Sample at half of the temperature that is accounted for."""
    return declared_step(declared.model_copy(update={"temperature": 0.5}))(logits, support)


public = Contexts()  # of no account here: the support is the whole vocabulary
assert (
    attack(declared_step(declared), Contexts(), public, declared, trials=20, tokens=4).beyond == 0
)
found = attack(colder, Contexts(), public, declared, trials=20, tokens=4)
assert found.beyond > 0
assert found.worst.values["ratio"].value > found.worst.values["allowed"].value  # nats
