"""Whether a model knew records before they were used, from Python. Every figure is private."""

from __future__ import annotations

from dpaudit.api.missing import missing
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.shown import Shown
from dpaudit.api.tables import Records, records_file
from dpaudit.results.contamination import Contamination, Ranks
from dpaudit.results.rounding import nearest
from dpaudit.runs import InputError


class KnownRecords(Shown[Contamination]):
    """A comparison of records with other texts by a model's likelihood. Do not publish it."""

    @property
    def outcome(self) -> str:
        """The outcome: "known", "no-sign" or "files-differ"."""
        return self.result.outcome

    def _title(self) -> str:
        return f"Contamination of {self.result.model.name} (private): {self.result.outcome}"

    def _rows(self) -> list[tuple[str, str]]:
        found = self.result
        texts = f"{found.records.texts:,} records, {found.others.texts:,} others"
        return [
            ("texts", texts),
            ("likelihood", _auc(found.likelihood)),
            ("words alone", _auc(found.words)),
        ]


def _auc(ranks: Ranks) -> str:
    low, high = nearest(ranks.low, 3), nearest(ranks.high, 3)
    return f"AUC {nearest(ranks.auc, 3)} ({low} to {high}), p {ranks.p:.2g}"


def contamination(
    records: Records,
    against: Records,
    model: str,
    *,
    text: str = "text",
    texts: int = 1000,
    tokens: int = 128,
    level: float = 1e-3,
    monitor: Monitor = SILENT,
) -> KnownRecords:
    """Test whether a model knew records before they were used.

    A language model that was trained on records finds them more likely than texts of the same kind
    that it never saw. Held-out records of the same file are no such texts: whoever trained on the
    file trained on them, too.

    Args:
        records: a path, a pandas.DataFrame or a datasets.Dataset.
        against: likewise: texts of the same kind that the model cannot have been trained on, such
            as texts that were written after its date.
        model: as `model.name` of a config.
        text: the column of texts, in both.
        texts: the most that are used of each, at least 1.
        tokens: of a text that are read, at least 2.
        level: of the tests.
        monitor: receives progress.

    Raises:
        InputError: a package is missing, or the texts, the model or a setting cannot be used.
    """
    if not 0 < level < 1:
        raise InputError("level", f"the value is {level!r}.", "Give a number between 0 and 1.")
    from dpaudit.generation.records import read_texts

    # before torch is loaded, which takes seconds
    with records_file(records, "records") as file:
        mine = read_texts(file, text, "RECORDS", "--text")
    with records_file(against, "against") as file:
        others = read_texts(file, text, "--against", "--text")
    try:
        from dpaudit.generation.config import ModelConfig
        from dpaudit.generation.evaluation.contamination import compare
    except ModuleNotFoundError as error:
        raise missing("contamination", error.name, "generate") from None
    with monitor.progress("Likelihood", "texts") as watch:
        found = compare(
            mine,
            others,
            ModelConfig(name=model),
            most=texts,
            tokens=tokens,
            level=level,
            watch=watch,
        )
    return KnownRecords(found)
