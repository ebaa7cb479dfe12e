"""`python -m benchmarks.power`: rates of the statistical checks' findings, in bad and honest runs.

Writes docs/reference/power.md. Runs are simulated draw by draw, without files: some minutes on two
cores.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from dpaudit.auditing.checks.draws import Draw, DrawnSteps
from dpaudit.auditing.checks.randomness import IndependenceTest
from dpaudit.auditing.checks.sampling import RunSampling, SamplingTest

PAGE = Path(__file__).parents[1] / "docs/reference/power.md"
TEMPERATURE, CLIP, TOKENS = 1.5, 9.0, 200
#: Batches and tokens of each, of the runs that the tables are of.
SIZES = ((1, 100), (10, 20), (10, 100), (50, 20))
#: How many runs of each kind are simulated, and how many honest ones of how many batches and
#: tokens.
RUNS, HONEST, HONEST_SIZE = 20, 10_000, (3, 12)

Doubles = NDArray[np.float64]


class Run:
    """The facts about the run that a sampler may know."""

    def __init__(self, seed: int, batches: int, steps: int) -> None:
        self.batches, self.steps = batches, steps
        self.random = np.random.default_rng([seed, batches, steps])
        self.shared = self.random.random(steps + 5 * batches)
        self.uniforms = self.random.random((batches, steps))
        self.noise = self.random.gumbel(size=(steps, TOKENS))

    def aggregates(self) -> Iterator[Doubles]:
        """Yield clipped aggregates like a language model's medians, one for each place.

        Texts of one prompt have them nearly alike.
        """
        for _ in range(self.steps):
            yield np.maximum(CLIP - np.sort(self.random.gamma(2.0, 3.0, TOKENS)), -CLIP)


#: Scores over the temperature, the run, the batch, the step and the text so far -> the token.
Sampler = Callable[[Doubles, Run, int, int, list[int]], int]


def by_id(scores: Doubles, u: float) -> int:
    """Return the token of a uniform number, with tokens in the order of their ids."""
    weights = np.cumsum(np.exp(scores - scores.max()))
    return min(int(np.searchsorted(weights, u * weights[-1])), len(scores) - 1)


def honest(scores: Doubles, run: Run, batch: int, step: int, text: list[int]) -> int:
    """Draw with a number of its own."""
    return by_id(scores, float(run.uniforms[batch, step]))


def altered(alter: Callable[[Doubles, list[int]], Doubles]) -> Sampler:
    """Return a sampler that draws honestly from other scores."""
    return lambda scores, run, batch, step, text: honest(
        alter(scores, text), run, batch, step, text
    )


def top(kept: int) -> Callable[[Doubles, list[int]], Doubles]:
    """Keep the most probable tokens alone."""
    return lambda scores, text: np.where(scores >= np.sort(scores)[-kept], scores, -np.inf)


def nucleus(share: float) -> Callable[[Doubles, list[int]], Doubles]:
    """Keep the smallest set of this probability alone."""

    def cut(scores: Doubles, text: list[int]) -> Doubles:
        weights = np.exp(scores - scores.max())
        order = np.argsort(-scores)
        return top(int(np.searchsorted(np.cumsum(weights[order] / weights.sum()), share)) + 1)(
            scores, text
        )

    return cut


def typical(share: float) -> Callable[[Doubles, list[int]], Doubles]:
    """Keep the tokens alone whose surprise is nearest to the entropy."""

    def cut(scores: Doubles, text: list[int]) -> Doubles:
        chances = np.exp(scores - scores.max())
        chances /= chances.sum()
        distance = np.abs(-np.log(chances) + (chances * np.log(chances)).sum())
        order = np.argsort(distance)
        kept = order[: int(np.searchsorted(np.cumsum(chances[order]), share)) + 1]
        found = np.full(len(scores), -np.inf)
        found[kept] = scores[kept]
        return found

    return cut


def penalty(each: float, once: float) -> Callable[[Doubles, list[int]], Doubles]:
    """Subtract, in logit units, from tokens that the text has: for each time, and once."""

    def lowered(scores: Doubles, text: list[int]) -> Doubles:
        times = np.bincount(text, minlength=len(scores)) if text else np.zeros(len(scores))
        return np.asarray(scores - (each * times + once * (times > 0)) / TEMPERATURE)

    return lowered


def repetition(by: float) -> Callable[[Doubles, list[int]], Doubles]:
    """Divide scores of tokens that the text has; multiply negative ones."""

    def lowered(scores: Doubles, text: list[int]) -> Doubles:
        found = scores.copy()
        for token in set(text):
            found[token] = found[token] / by if found[token] > 0 else found[token] * by
        return found

    return lowered


def some(sampler: Sampler, batches: Callable[[Run, int], bool]) -> Sampler:
    """Return a sampler for some batches, with honest draws for the others."""
    return lambda scores, run, batch, *rest: (sampler if batches(run, batch) else honest)(
        scores, run, batch, *rest
    )


def numbers(of: Callable[[Run, int, int], float]) -> Sampler:
    """Return a sampler that draws from the declared distribution with these numbers."""
    return lambda scores, run, batch, step, text: by_id(scores, of(run, batch, step))


def _stratified(run: Run, batch: int, step: int) -> float:
    stratum = np.random.default_rng([step, run.steps]).permutation(run.batches)[batch]
    return float((stratum + run.uniforms[batch, step]) / run.batches)


def _stratified_along(run: Run, batch: int, step: int) -> float:
    stratum = np.random.default_rng([batch, run.batches]).permutation(run.steps)[step]
    return float((stratum + run.uniforms[batch, step]) / run.steps)


def _mirrored(run: Run, batch: int, step: int) -> float:
    u = float(run.uniforms[batch // 2 * 2, step])
    return 1 - u if batch % 2 else u


def _noisy(scores: Doubles, run: Run, batch: int, step: int, text: list[int]) -> int:
    return int((scores + run.noise[step]).argmax())


def _mixed(scores: Doubles, run: Run, batch: int, step: int, text: list[int]) -> int:
    greedy = run.shared[step + batch] * 1e6 % 1 < 0.1
    return int(scores.argmax()) if greedy else honest(scores, run, batch, step, text)


GREEDY = altered(top(1))
SHARED = numbers(lambda run, batch, step: float(run.shared[step]))
#: What sampling.distribution is for.
DISTRIBUTION: dict[str, Sampler] = {
    "temperature 0.8 times the declared one": altered(lambda scores, text: scores / 0.8),
    "temperature 0.6 times the declared one": altered(lambda scores, text: scores / 0.6),
    "temperature 1.5 times the declared one": altered(lambda scores, text: scores / 1.5),
    "greedy decoding": GREEDY,
    "greedy decoding of one batch": some(GREEDY, lambda run, batch: batch == run.batches - 1),
    "greedy decoding of a twentieth of the steps": lambda *given: (
        _mixed(*given) if given[3] % 2 else honest(*given)
    ),
    "greedy decoding of a tenth of the steps": _mixed,
    "top-k 20": altered(top(20)),
    "top-k 50": altered(top(50)),
    "top-p 0.9": altered(nucleus(0.9)),
    "top-p 0.98": altered(nucleus(0.98)),
    "top-p 0.9 in one batch": some(altered(nucleus(0.9)), lambda run, batch: batch == 0),
    "min-p 0.05": altered(
        lambda scores, text: np.where(scores >= scores.max() + np.log(0.05), scores, -np.inf)
    ),
    "typical sampling of 0.9": altered(typical(0.9)),
    "repetition penalty 1.2": altered(repetition(1.2)),
    "presence penalty 1.5": altered(penalty(0, 1.5)),
    "frequency penalty 0.5": altered(penalty(0.5, 0)),
}
#: What sampling.independence is for.
INDEPENDENCE: dict[str, Sampler] = {
    "all batches share a generator state": SHARED,
    "two batches share a generator state": some(
        SHARED, lambda run, batch: batch in (0, run.batches - 1)
    ),
    "each batch begins five numbers later in one stream": numbers(
        lambda run, batch, step: float(run.shared[step + 5 * batch])
    ),
    "all batches add the same Gumbel noise": _noisy,
    "antithetic batches": numbers(_mirrored),
    "stratified across batches": numbers(_stratified),
    "stratified along each batch": numbers(_stratified_along),
    "golden-ratio sequence across batches": numbers(
        lambda run, batch, step: float((run.shared[step] + batch * (5**0.5 - 1) / 2) % 1)
    ),
}


def alarms(sampler: Sampler, seed: int, batches: int, steps: int) -> tuple[bool, bool]:
    """Return whether a simulated run alarms: sampling.distribution, sampling.independence."""
    run = Run(seed, batches, steps)
    places = list(run.aggregates())
    sampling, independence = RunSampling(TEMPERATURE, batches), IndependenceTest(batches, steps)
    for batch in range(batches):
        test, draws, text = SamplingTest(), list[Draw](), list[int]()
        for step, place in enumerate(places):
            aggregate = np.clip(place + run.random.normal(0, 0.5, TOKENS), -CLIP, CLIP)
            token = sampler(aggregate / TEMPERATURE, run, batch, step, text)
            drawn = DrawnSteps.alone(aggregate, TEMPERATURE, token, np.array(text, dtype=np.int64))
            if drawn is not None:
                test.add(drawn, [bytes([seed % 256, batch % 256, step % 256])])
                draws.append(Draw(*drawn.draws(np.array([token]))[0]))
            text.append(token)
        sampling.merge(batch, test)
        independence.take(batch, draws, [steps])
    return bool(sampling.alarms()), bool(independence.dependences())


def found(kind: str, check: int, batches: int, steps: int) -> int:
    """Return how many of RUNS runs of a kind the check finds.

    Kinds are by name, which a process can be sent.
    """
    sampler = (DISTRIBUTION | INDEPENDENCE)[kind]
    return sum(alarms(sampler, seed, batches, steps)[check] for seed in range(RUNS))


def false_alarms(first: int, last: int) -> tuple[int, int]:
    """Return how many honest runs of these seeds alarm, by either check."""
    each = [alarms(honest, 1_000_000 + seed, *HONEST_SIZE) for seed in range(first, last)]
    return sum(one for one, _ in each), sum(other for _, other in each)


def table(
    title: str, kinds: dict[str, Sampler], check: int, pool: ProcessPoolExecutor
) -> Iterator[str]:
    """Yield the lines of one table."""
    counts = {kind: [pool.submit(found, kind, check, *size) for size in SIZES] for kind in kinds}
    yield f"| {title} | " + " | ".join(f"{batches} × {steps}" for batches, steps in SIZES) + " |"
    yield "|---" * (len(SIZES) + 1) + "|"
    for kind, row in counts.items():
        among = "batch" in kind and "along" not in kind
        alone = ["–" if among and batches == 1 else "" for batches, _ in SIZES]
        yield (
            f"| {kind} | "
            + " | ".join(no or f"{n.result()}" for no, n in zip(alone, row, strict=True))
            + " |"
        )


HEAD = f"""# Power of the statistical checks

How many of {RUNS} simulated runs [`sampling.distribution`](../mathematics.md#the-sampling-test) and
[`sampling.independence`](../mathematics.md#independent-draws) find, by batches × tokens of each. Aggregates are over
{TOKENS} tokens, clipped at {CLIP:g}, at temperature {TEMPERATURE:g}; a place's are alike in all batches but for noise
of 0.5, as those of one prompt are. A dash is where one batch is too few. What a run of your own would have shown is in
its report: power depends on how sure the model is of its tokens.

"""  # noqa: E501


@click.command()
def main() -> None:
    """Simulate, and write docs/reference/power.md."""
    with ProcessPoolExecutor(2) as pool:
        share = HONEST // 40
        honest_runs = [
            pool.submit(false_alarms, first, first + share) for first in range(0, HONEST, share)
        ]
        lines = [
            *table("drawn otherwise (sampling.distribution)", DISTRIBUTION, 0, pool),
            "",
            *table("not independent (sampling.independence)", INDEPENDENCE, 1, pool),
        ]
        one, other = (
            sum(each) for each in zip(*(run.result() for run in honest_runs), strict=True)
        )
    batches, steps = HONEST_SIZE
    tail = f"""
**False alarms.** Of {HONEST:,} honest runs of {batches} × {steps} tokens, `sampling.distribution` alarmed on {one} and
`sampling.independence` on {other}. The bound, which holds whatever the model, is 5e-5 for each.

`python -m benchmarks.power`, {os.cpu_count()} CPU cores, {datetime.datetime.now(datetime.UTC).date().isoformat()}.
"""  # noqa: E501
    PAGE.write_text(HEAD + "\n".join(lines) + "\n" + tail, encoding="utf-8")
    click.echo(f"written: {os.path.relpath(PAGE)}", err=True)


if __name__ == "__main__":
    main()
