"""Optimal composition against Renyi accounting at the paper's settings: figures, and seconds on one core."""

from __future__ import annotations

import math
import time

from dpaudit.accounting import exponential_mechanism_epsilon

SETTINGS = [  # eta, tokens, records, rebalancing epsilon
    (0.1875, 367, 108_000, 0.0),
    (0.1875, 367, 108_000, 0.1),
    (0.046875, 689, 108_000, 0.0),
    (0.01, 10_000, 108_000, 0.0),
]


def main() -> None:
    """Print a line per setting."""
    exponential_mechanism_epsilon(0.1, 1, 1e-5)  # dp-accounting is imported on first use
    print("eta       tokens  rebalancing      RDP   lower   upper  seconds")
    for eta, tokens, records, rebalancing in SETTINGS:
        delta, laplace = records**-1.1, [rebalancing]
        rdp = exponential_mechanism_epsilon(eta, tokens, delta, method="rdp", laplace=laplace).epsilon
        start = time.process_time()
        found = exponential_mechanism_epsilon(eta, tokens, delta, laplace=laplace)
        seconds = time.process_time() - start
        figures = " ".join(
            f"{value:7.4f}" for value in (up(rdp), -up(-(found.epsilon_lower or 0.0)), up(found.epsilon))
        )
        print(f"{eta:<8g} {tokens:>7}  {rebalancing:>11g}  {figures}  {seconds:7.2f}")


def up(epsilon: float) -> float:
    """Four decimals, rounded up."""
    return math.ceil(epsilon * 1e4) / 1e4


if __name__ == "__main__":
    main()
