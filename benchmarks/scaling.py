"""docs/reference/full-size.md: time, storage and cost, step by step from the latest measurements.

`python -m benchmarks.scaling` prints the arithmetic; `python -m benchmarks --page` writes the page.
What stands above the section on full size is written by hand, and stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks import generating
from benchmarks.rows import RESULTS, Results, significant

PAGE = Path(__file__).parents[1] / "docs/reference/full-size.md"
#: Of the model that records and audits were measured with.
MEASURED_VOCABULARY = 49_152


NAMED = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


class Factor(NamedTuple):
    """A number in the arithmetic, with what it counts."""

    value: float
    unit: str

    def __str__(self) -> str:
        for size, name in NAMED:
            if self.value >= size:
                return f"{significant(self.value / size)} {name} {self.unit}".strip()
        return f"{significant(self.value)} {self.unit}".strip()


MEASURED_MODEL = Factor(134.5e6, "parameters")


class Given(NamedTuple):
    """A number that was not measured here: what it is, and who says so."""

    name: str
    factor: Factor
    source: str

    def __str__(self) -> str:
        return f"{self.name} {self.factor}{' (assumed)' if self.source.startswith(ASSUMED) else ''}"


ASSUMED = "**assumed**"
PRICE = f"{ASSUMED} on 2026-11-21: no quote; put your own"
GEMMA = "Gemma 2 report, arXiv 2408.00118"
H100 = "NVIDIA's data sheet of the H100 SXM"

TOKENS = Given("longest text", Factor(400, "tokens"), "the paper has 331 to 373 at epsilon 10")
CONTEXTS = Given("contexts of a batch", Factor(64, "contexts"), "the paper, at epsilon 10")
OTHER_AUDIT = Given(
    "an audit with 64 contexts over one with 32",
    Factor(1.08, ""),
    "2026-11-27, two cores of an AMD EPYC with AVX2, shared: 36.1 over 33.4 ms a step",
)
SUPPORT_WRITING = Given(
    "write a step of a support, 64 contexts",
    Factor(1.2, "ms"),
    "2026-11-27, two cores of an AMD EPYC with AVX2, shared",
)
VOCABULARY = Given("vocabulary", Factor(256_000, "words"), "Gemma 2, rounded")
PROMPT = Given(
    "padded prompt",
    Factor(128, "tokens"),
    f"{ASSUMED}: a news text of some 100 tokens in its frame",
)
PARAMETERS = Given("Gemma 2 2B", Factor(2.6e9, "parameters"), GEMMA)
CACHE = Given(
    "keys and values of one token",
    Factor(26 * 4 * 256 * 2 * 2, "bytes"),
    f"{GEMMA}: 26 layers, 4 heads of 256, 16 bits",
)
COMPUTE = Given("a GPU's arithmetic", Factor(989e12, "FLOP/s"), f"{H100}: bfloat16, dense")
BANDWIDTH = Given("a GPU's memory", Factor(3.35e12, "bytes/s"), H100)
REACHED = Given("what is reached of both", Factor(0.3, ""), f"{ASSUMED}: no GPU was at hand")
ROWS = Given(
    "contexts forwarded together",
    Factor(512, "contexts"),
    f"{ASSUMED}: eight batches, some 28 GB of cache",
)
PASSES = Given(
    "an aggregation on the GPU",
    Factor(12, "memory passes"),
    f"{ASSUMED}: the bound that a CPU is held to in benchmarks.md",
)
GPU_HOUR = Given("an H100 for an hour", Factor(3.0, "USD"), PRICE)
CORE_HOUR = Given("a core for an hour", Factor(0.05, "USD"), PRICE)
STORAGE = Given("a GB of object storage for a month", Factor(0.023, "USD"), PRICE)
GIVEN = (
    *(
        TOKENS,
        CONTEXTS,
        OTHER_AUDIT,
        SUPPORT_WRITING,
        VOCABULARY,
        PROMPT,
        PARAMETERS,
        CACHE,
        COMPUTE,
        BANDWIDTH,
        REACHED,
        ROWS,
        PASSES,
    ),
    *(GPU_HOUR, CORE_HOUR, STORAGE),
)

HOUR = Factor(3600, "s/h")
GIGA = Factor(1e9, "bytes/GB")
NANO = Factor(1e9, "ns/s")
MILLI = Factor(1e3, "ms/s")
FLOP = Factor(2, "FLOP a parameter")
FLOAT = Factor(4, "bytes")

#: Texts, each from a batch of its own: in the paper's full setting, and beside it.
PAPER, MANY = Factor(1_700, "batches"), Factor(1e6, "batches")
SETTING = """\
At one record a context, 64 contexts a batch, the 108,000 records of AG News fill some 1,700 batches. A million texts
need 64 million records. `python -m benchmarks.scaling` prints each line's arithmetic.
"""  # noqa: E501

#: Lines of the arithmetic that the page shows.
SHOWN = (
    *(
        "steps",
        "tokens passed through the model",
        "one GPU (assumed)",
        "write, one core",
        "audit, one core",
    ),
    *(
        "record, without loss",
        "record on a grid",
        "for comparison, generate on the measured machine",
        "**cost**",
    ),
)

#: Rows about steps over a support of 100 words.
SUPPORT_RECORD = "whole record over raw differences: anchored"
SUPPORT_AUDIT = (
    "steps a second of a whole audit, one core, anchored with all contexts, over the same"
)
#: What a run can record -> lines of the arithmetic: what it stores, writing and its audit.
MODES = {
    "whole vocabulary, without loss": (
        "record, without loss",
        "write, one core",
        "audit, one core",
    ),
    "whole vocabulary, on a grid": ("record on a grid", "write, one core", "audit, one core"),
    "support of 100 words, all contexts": (
        "record of a support",
        "write a support, one core",
        "audit of a support, one core",
    ),
}

HEADING = "# At full size: time, storage and cost"

INTRODUCTION = """\
Made by `make bench` from the rates of [benchmarks.md](benchmarks.md); do not edit. **No GPU was at hand**: figures of
GPUs follow from data sheets and assumptions.
"""  # noqa: E501

PROPORTION = f"""\
**Extrapolated**: what is done for every word was measured over the {MEASURED_VOCABULARY:,} words of SmolLM2-135M, and
taken to grow in proportion. Records and audits were measured with 32 contexts: of 64, all but the central values takes
twice the bytes, and an audit {OTHER_AUDIT.factor.value:g} times as long.
"""  # noqa: E501

CONCLUSION = """\
Batches share nothing: twice the GPUs or cores take half the time, down to one batch each. The GPU's work grows with the
number of contexts, record and audit with the vocabulary: a public support of k words divides them by 256,000 / k."""  # noqa: E501


@dataclass(frozen=True)
class Rates:
    """The measured rates.

    Attributes:
        aggregation: a step of 64 contexts and 256,000 tokens on all cores of the machine.
        writing, audit: seconds of one core a step and token of the vocabulary.
        record, on_grid: bytes a step and token of the vocabulary, at clip 6, with 64 contexts.
        support, support_audit: bytes, and seconds of one core, of a step over a support with the
            differences of 64 contexts.
        contexts: contexts times tokens that SmolLM2-135M generates in a second.
        device: that it runs on, "cpu" meaning all cores.
    """

    aggregation: Factor
    writing: Factor
    audit: Factor
    record: Factor
    on_grid: Factor
    support: Factor
    support_audit: Factor
    contexts: Factor
    device: str

    @classmethod
    def of(cls, results: Results) -> Rates:
        """Read a whole run's results.

        Raises:
            ValueError: a row is missing.
        """

        def figure(topic: str, what: str, name: str) -> float:
            return float(results.row(topic, what).figures[name])

        contexts, texts = generating.CONTEXTS, generating.BATCHES
        generated = f"ours over a bare loop: {texts} texts of {contexts}"
        clip = "clip 6"

        def kibibytes(case: str) -> float:
            whole, central = (
                figure("record", f"{what} over raw central: {case}", "KiB a step")
                for what in ("whole record", "central")
            )
            return central + 2 * (whole - central)

        writing = figure(
            "record", f"time to write over generation: {clip}, no grid", "writing, ms a step"
        )
        audit = figure("audit", "whole audit over reading, one core", "audit, ms a step")
        per_word = 1 / MEASURED_VOCABULARY
        return cls(
            Factor(
                figure(
                    "aggregation", "ours over one pass of amax: 64 x 256,000, realistic", "ours, ms"
                )
                / 1e3,
                "s",
            ),
            Factor(writing * 1e6 * per_word, "ns a word"),
            Factor(audit * OTHER_AUDIT.factor.value * 1e6 * per_word, "ns a word"),
            Factor(kibibytes(f"{clip}, no grid") * 1024 * per_word, "bytes a word"),
            Factor(
                kibibytes(f"{clip}, grid") * 1024 * per_word,
                "bytes a word",
            ),
            Factor(2 * 1024 * figure("record", SUPPORT_RECORD, "KiB a step"), "bytes"),
            Factor(
                OTHER_AUDIT.factor.value
                * 1e3
                / figure("audit", SUPPORT_AUDIT, "anchored, steps/s"),
                "ms",
            ),
            Factor(
                figure("generation", generated, "ours, tokens/s") * contexts, "context tokens/s"
            ),
            results.row("generation", generated).what.rpartition(", ")[2],
        )


@dataclass
class Sheet:
    """Arithmetic, a line each: what, from which numbers, and the result."""

    lines: list[tuple[str, str, Factor]] = field(default_factory=list)

    def product(
        self, what: str, unit: str, times: tuple[Factor, ...], over: tuple[Factor, ...] = ()
    ) -> Factor:
        """Multiply and divide, and write it down."""
        value = math.prod(factor.value for factor in times) / math.prod(
            factor.value for factor in over
        )
        return self._line(
            what,
            " × ".join(map(str, times)) + "".join(f" ÷ {factor}" for factor in over),
            value,
            unit,
        )

    def sum(self, what: str, unit: str, *parts: Factor) -> Factor:
        """Add, and write it down."""
        return self._line(
            what, " + ".join(map(str, parts)), sum(part.value for part in parts), unit
        )

    def _line(self, what: str, arithmetic: str, value: float, unit: str) -> Factor:
        result = Factor(value, unit)
        self.lines.append((what, arithmetic, result))
        return result


def rendered(results: Results) -> str:
    """Return the page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    rates, machine = Rates.of(results), results.machine
    yield from (HEADING, "", INTRODUCTION, "## Measured rates", "")
    yield f"On {machine['processor']}, {machine['cores']} cores. {PROPORTION}"
    yield from ("| what | rate |", "|---|---|")
    yield from (f"| {what} | {rate} |" for what, rate in _named(rates))
    named = "; ".join(map(str, GIVEN))
    yield from (
        "",
        f"Not from `make bench`; sources are at the top of `benchmarks/scaling.py`: {named}.",
    )
    yield from ("", "## The paper's full setting, and a million texts", "", SETTING)
    yield from ("| what | result | a million texts |", "|---|---|---|")
    found = {what: (result, many) for what, _, result, many in worked_out(results)}
    for what, (result, many) in found.items():
        if what in SHOWN:
            yield f"| {what} | {result} | {many} |"
    yield from ("", "## The paper's full setting by what is recorded", "")
    yield from ("| mode | disk | write | audit | generate |", "|---|---|---|---|---|")
    for mode, lines in MODES.items():
        shown = (str(found[line][0]) for line in (*lines, "one GPU (assumed)"))
        yield f"| {mode} | {' | '.join(shown)} |"
    yield from ("", CONCLUSION)


def worked_out(results: Results) -> Iterator[tuple[str, str, Factor, Factor]]:
    """Yield each line's name, its arithmetic and its two results.

    The results are those in the paper's setting and for a million texts.
    """
    rates, cores = Rates.of(results), results.machine["cores"]
    sheets = (_worked_out(rates, cores, texts).lines for texts in (PAPER, MANY))
    for (what, arithmetic, result), (_, _, many) in zip(*sheets, strict=True):
        yield what, arithmetic, result, many


def _named(rates: Rates) -> Iterator[tuple[str, Factor]]:
    yield "aggregate a step of 64 contexts and 256,000 words, all cores", rates.aggregation
    yield "write a step at clip 6, one core", rates.writing
    yield "audit a step, one core", rates.audit
    yield "a step's record at clip 6, 64 contexts, without loss", rates.record
    yield "the same on a grid", rates.on_grid
    yield "a step's record over a support of 100 words, 64 contexts", rates.support
    yield "audit such a step, one core", rates.support_audit
    yield (
        f"generate with SmolLM2-135M ({MEASURED_MODEL}), 32 contexts a text, {rates.device}",
        rates.contexts,
    )


def _worked_out(rates: Rates, cores: int, texts: Factor) -> Sheet:
    sheet = Sheet()
    steps = sheet.product("steps", "steps", (texts, TOKENS.factor))
    shown = sheet.product("prompt tokens read", "tokens", (texts, CONTEXTS.factor, PROMPT.factor))
    decoded = sheet.product("tokens of contexts decoded", "tokens", (steps, CONTEXTS.factor))
    gpu = _gpu(sheet, steps, shown, decoded)
    words = sheet.product("words over all steps", "words", (steps, VOCABULARY.factor))
    writing = sheet.product("write, one core", "core hours", (words, rates.writing), (NANO, HOUR))
    audit = sheet.product("audit, one core", "core hours", (words, rates.audit), (NANO, HOUR))
    stored = sheet.product("record, without loss", "GB", (words, rates.record), (GIGA,))
    sheet.product("record on a grid", "GB", (words, rates.on_grid), (GIGA,))
    sheet.product("record of a support", "GB", (steps, rates.support), (GIGA,))
    for what, rate in (
        ("write a support", SUPPORT_WRITING.factor),
        ("audit of a support", rates.support_audit),
    ):
        sheet.product(f"{what}, one core", "core hours", (steps, rate), (MILLI, HOUR))
    machine = Factor(cores, "cores")
    sheet.product(
        "for comparison, generate on the measured machine",
        "h",
        (decoded, PARAMETERS.factor),
        (MEASURED_MODEL, rates.contexts, HOUR),
    )
    sheet.product(
        "for comparison, aggregate on the measured machine",
        "core hours",
        (steps, rates.aggregation, machine),
        (HOUR,),
    )
    on_gpus = sheet.product("cost of the GPU", "USD", (gpu, GPU_HOUR.factor))
    on_cores = sheet.product(
        "cost of writing and audit",
        "USD",
        (Factor(writing.value + audit.value, "core hours"), CORE_HOUR.factor),
    )
    a_month = sheet.product("cost of a month's storage", "USD", (stored, STORAGE.factor))
    sheet.sum("**cost**", "USD", on_gpus, on_cores, a_month)
    return sheet


def _gpu(sheet: Sheet, steps: Factor, shown: Factor, decoded: Factor) -> Factor:
    """Add the hours of one GPU: all tokens' arithmetic, decoding's memory reads, aggregation."""
    passed = sheet.sum("tokens passed through the model", "tokens", shown, decoded)
    arithmetic = sheet.product(
        "arithmetic (GPU, assumed)",
        "h",
        (passed, FLOP, PARAMETERS.factor),
        (COMPUTE.factor, REACHED.factor, HOUR),
    )
    weights = sheet.product(
        "weights read (GPU, assumed)",
        "h",
        (decoded, PARAMETERS.factor, Factor(2, "bytes")),
        (ROWS.factor, BANDWIDTH.factor, REACHED.factor, HOUR),
    )
    half = Factor(PROMPT.factor.value + TOKENS.factor.value / 2, "tokens of mean length")
    cache = sheet.product(
        "keys and values read (GPU, assumed)",
        "h",
        (decoded, half, CACHE.factor),
        (BANDWIDTH.factor, REACHED.factor, HOUR),
    )
    aggregation = sheet.product(
        "aggregation (GPU, assumed)",
        "h",
        (steps, CONTEXTS.factor, VOCABULARY.factor, FLOAT, PASSES.factor),
        (BANDWIDTH.factor, HOUR),
    )
    return sheet.sum("one GPU (assumed)", "GPU hours", arithmetic, weights, cache, aggregation)


if __name__ == "__main__":
    for line, derivation, figure, _ in worked_out(Results.read(RESULTS)):
        print(f"{line}: {derivation} = {figure}")
