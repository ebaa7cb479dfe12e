"""Generation from Python: from a config and private records to a run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from dpaudit.api import places
from dpaudit.api.audits import audit
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.reading import Run, Texts, open_public, open_run
from dpaudit.api.tables import Records, is_table, records_file
from dpaudit.generation import config as settings
from dpaudit.generation import events as events
from dpaudit.generation.events import Event as Event
from dpaudit.generation.events import ModelLoaded as ModelLoaded
from dpaudit.generation.events import Phase as Phase
from dpaudit.generation.events import RecordsPlaced as RecordsPlaced
from dpaudit.generation.events import RunResumed as RunResumed
from dpaudit.runs import InputError, RunReader, layout
from dpaudit.runs.engines import LocalEngine
from dpaudit.runs.reader import read_tokenizer
from dpaudit.runs.storage import open_storage
from dpaudit.runs.text import KNOWN_TOKENIZERS
from dpaudit.runs.writer import require_unused

if TYPE_CHECKING:
    from dpaudit.auditing.checks.preflight import Obstacle
    from dpaudit.generation.algorithm import Ready
    from dpaudit.results.plan import Menu, Plan, PublicPreview
    from dpaudit.runs.engines import Engine

#: Settings of a run: a Config, the mapping that one is made from, or the path of a YAML config.
Settings: TypeAlias = settings.Config | Mapping[str, Any] | str | os.PathLike[str]
#: What stands as data.path in a Config without data of its own.
_TO_BE_GIVEN = "the records that generate is given"


class Config(settings.Config):
    """All settings of a run, by section: data, model, prompt, batching, mechanism, decoding etc.

    `data` may leave out path and dataset where `generate` is given the records. Sections are
    mappings, as in YAML (docs/generation.md).

    Raises:
        InputError: names the field by its dotted path, the value that was given, and what is
            allowed.
    """

    def __init__(self, **sections: Any) -> None:
        data = sections.get("data")
        if isinstance(data, Mapping) and not {"path", "dataset"} & data.keys():
            sections["data"] = {**data, "path": _TO_BE_GIVEN}
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise settings.input_error(Path("Config"), error) from None


def read_config(config: Settings) -> settings.Config:
    """Return checked settings. Raises InputError, which names the field and what is allowed."""
    if isinstance(config, settings.Config):
        return config
    return (
        Config(**config)
        if isinstance(config, Mapping)
        else settings.load_config(places.path_of(config, "config"))
    )


@contextmanager
def _ready(
    config: Settings, records: Records | None, engine: Engine | None
) -> Iterator[settings.Config]:
    """Give settings whose data is the records; an error in a file's field is told with its path."""
    checked = read_config(config)
    try:
        if records is None:
            if checked.data.path == _TO_BE_GIVEN:
                raise InputError(
                    "records",
                    "there are none.",
                    "Give them to generate, or a path in the config's data.",
                )
            yield checked
            return
        if is_table(records) and not (engine is None or isinstance(engine, LocalEngine)):
            problem = "workers on other machines cannot read a table of this process."
            raise InputError(
                "records", problem, "Write it to a file that all of them reach, and give its path."
            )
        with records_file(records, "records") as file:
            yield _with_data(checked, file)
    except InputError as error:
        if isinstance(config, str | os.PathLike):
            raise settings.in_config(Path(config), error) from None
        raise


def _with_data(config: settings.Config, path: str) -> settings.Config:
    """Return the settings with another file as their data, held to all rules for settings again."""
    given = config.model_dump(exclude_unset=True)
    data = {
        name: value
        for name, value in given["data"].items()
        if name not in ("dataset", "config", "split")
    }
    try:
        return settings.Config.model_validate({**given, "data": {**data, "path": path}})
    except ValidationError as error:
        raise settings.input_error(Path("records"), error) from None


def generate(
    config: Settings,
    records: Records | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    spent: Sequence[str | os.PathLike[str]] = (),
    stop_after: int | None = None,
    unverified: bool = False,
    worth: bool = True,
    engine: Engine | None = None,
    made_config: str | None = None,
    monitor: Monitor = SILENT,
) -> Run:
    """Generate synthetic texts from private records, and write a run directory.

    This loads torch and the model.

    A run that was interrupted goes on at its first unfinished batch when it is called again in the
    same way. If only what the records added is not measured yet, that is measured.

    Args:
        config: the settings: a Config, a mapping, or the path of a YAML config.
        records: the private records, in place of the config's: a path, a pandas.DataFrame or a
            datasets.Dataset with the columns that the config's data names. A table is written to a
            temporary folder that its owner alone can read, and deleted afterwards.
        out: the run directory to write, or to go on with: a path or a URL.
        spent: finished runs of the same records: go on with what they left of the records' budgets.
        stop_after: finish this many of batching.rounds, and the run with them.
        unverified: generate what cannot pass its audit, too, for no release.
        worth: also write the texts of the same prompts without any record into the run directory,
            and measure what the records added to the likelihood of those that are held out
            (batching.held_out), for reports for readers inside. Not with an engine.
        engine: where batches are generated; None for this process.
        made_config: the config as YAML, to stand in the run directory as config.yaml.
        monitor: receives progress, as events (`dpaudit.generation.events`), and warnings.

    Returns:
        The run; `commitment` and `head` are the fingerprints to put where nobody can change them.

    Raises:
        InputError: a setting, the records, the model or the directory cannot be used; the run is
            finished; or it could not pass its audit and is not `unverified`.
    """
    if out is None:
        raise InputError("out", "there is none.", "Name a run directory to write.")
    place = place_for_run(out)
    finished = require_unfinished(place, worth=worth and engine is None)
    with _ready(config, records, engine) as asked:
        earlier = tuple(map(places.location_of, spent))
        if not unverified:
            require_passed(earlier, asked.model.name, monitor)
        parts: list[Ready] = []
        with monitor.generation(asked.decoding.most_tokens) as watch:
            watch(events.PhaseBegan("reading"))
            for obstacle in look_at_data(asked, unverified, goes_on=bool(earlier)):
                monitor.warn(str(obstacle))
            watch(events.PhaseBegan("starting"))
            from dpaudit.generation import algorithm

            if finished:
                parts.append(algorithm.made_with(asked, place, watch, earlier))
            else:
                algorithm.generate(
                    asked,
                    place,
                    watch,
                    engine,
                    spent=earlier,
                    redraw=unverified,
                    stop_after=stop_after,
                    made_config=made_config,
                    afterwards=parts.append,
                )
        if worth and engine is None:
            _measure_worth(asked, place, parts[0], monitor)
    return open_run(place)


def _measure_worth(
    config: settings.Config, run: places.Location, parts: Ready, monitor: Monitor
) -> None:
    """Write a run's baseline, and what the records added; the run is finished, whatever happens."""
    from dpaudit.generation.evaluation.worth import gain_at_the_end, write_baseline
    from dpaudit.results.quality_file import write_measures
    from dpaudit.results.worth import Worth

    baseline = places.inside(run, layout.BASELINE)
    samples, nothing, gain = RunReader(run).digest(layout.SAMPLES), None, None
    try:
        with monitor.titled(layout.BASELINE).generation(config.decoding.most_tokens) as watch:
            nothing = write_baseline(config, baseline, parts, watch)
        with monitor.progress("Measuring what the records added", "records") as show:
            gain = gain_at_the_end(parts, show)
    except InputError as error:
        monitor.warn(f"what the records added was not measured: {error}")
    except KeyboardInterrupt:
        monitor.warn(
            "the run is finished, and what the records added was not measured. To measure it, give "
            "the same command again."
        )
        raise
    measured = Worth(samples=samples, gain=gain, baseline=nothing)
    write_measures(measured, places.report_folder(run, "internal"))


def generate_public(
    config: Settings,
    out: str | os.PathLike[str],
    *,
    monitor: Monitor = SILENT,
) -> Texts:
    """Write the baseline of a config's runs: its prompts without any record, epsilon 0.

    This loads torch and the model.

    Args:
        config: as for `generate`. The records are not read.
        out: path or URL of a new or empty directory.
        monitor: receives progress.

    Raises:
        InputError: a setting, the model or the directory cannot be used.
    """
    place = place_for_run(out)
    asked = read_config(config)
    try:
        with monitor.generation(asked.decoding.most_tokens) as watch:
            watch(events.PhaseBegan("starting"))
            from dpaudit.generation.public import generate_public as write_baseline

            write_baseline(asked, place, watch)
    except InputError as error:
        raise (
            settings.in_config(Path(config), error)
            if isinstance(config, str | os.PathLike)
            else error
        ) from None
    return open_public(place)


def plan(
    config: Settings,
    records: Records | None = None,
    *,
    spent: Sequence[str | os.PathLike[str]] = (),
    unverified: bool = False,
    menu: Menu | None = None,
    monitor: Monitor = SILENT,
) -> Plan:
    """Return a run's plan, and write nothing.

    Args, Raises:
        As for `generate`; `menu` is what else the same epsilon gives, None to go by the config.
    """
    with _ready(config, records, None) as asked:
        earlier = tuple(map(places.location_of, spent))
        if not unverified:
            require_passed(earlier, asked.model.name, monitor)
        with monitor.generation(asked.decoding.most_tokens) as watch:
            watch(events.PhaseBegan("reading"))
            known = look_at_data(asked, unverified, goes_on=bool(earlier))
            watch(events.PhaseBegan("starting"))
            from dpaudit.auditing.checks.partition import unseen_places
            from dpaudit.generation.planned import planned_run
            from dpaudit.generation.planning import plan as planned

            return planned(
                asked,
                tuple(map(str, known)),
                earlier,
                menu,
                needs_data=bool(unseen_places(planned_run(asked).manifest)),
                progress=watch,
            )


def preview(config: Settings, *, monitor: Monitor = SILENT) -> PublicPreview:
    """Return texts of a config's public prompt alone, and whether its model can follow the prompt.

    This loads torch and the model. No record is read: the texts cost no epsilon.

    Raises:
        InputError: a setting or the model cannot be used.
    """
    asked = read_config(config)
    from dpaudit.generation.preview import preview as sample_prompt

    with monitor.progress("Texts of the public prompt alone", "tokens") as watch:
        return sample_prompt(asked, watch=watch)


def unknown_tokenizer(run: Run, model: str) -> Path | None:
    """Return the tokenizer file of a run's model, to be named to audits, unless they know it."""
    from dpaudit.generation.models import tokenizer_file

    file, digest = tokenizer_file(model), run.decoding_digest
    if (
        file is None
        or digest is None
        or digest in KNOWN_TOKENIZERS
        or read_tokenizer(file) != digest
    ):
        return None
    return file


def place_for_run(out: str | os.PathLike[str]) -> places.Location:
    """Return where to write. Raises InputError where nothing may be written, or would last."""
    place = places.location_of(out, "out")
    if str(place).startswith("memory:"):
        raise InputError(
            str(place),
            "this lives no longer than this command.",
            "Name a folder, or a URL of a store.",
        )
    if isinstance(place, Path):  # the directory itself may be a run that is gone on with
        places.spare_runs(place.parent, (), "Name another directory with --out.")
        places.require_writable(place, "--out")
        storage = open_storage(place)
        if place.exists() and not storage.exists(layout.MANIFEST):
            require_unused(storage)
    return place


def require_unfinished(place: places.Location, *, worth: bool) -> bool:
    """Return whether a run is finished, and what its records added is not measured yet.

    Args:
        place: as from `place_for_run`.
        worth: whether that is to be measured.

    Raises:
        InputError: the run is finished, and nothing is left to do.
    """
    if nothing_is_left(place, worth=worth):
        raise InputError(str(place), "this run is finished.", "Audit it, or name a new directory.")
    return open_storage(place).exists(layout.HASHES)


def nothing_is_left(place: places.Location, *, worth: bool = True) -> bool:
    """Return whether a run is finished, and what its records added is measured, if `worth`."""
    from dpaudit.results.quality_file import WORTH

    if not open_storage(place).exists(layout.HASHES):
        return False
    return not worth or (places.report_folder(place, "internal") / WORTH).exists()


def look_at_data(
    config: settings.Config, unverified: bool, *, goes_on: bool = False
) -> tuple[Obstacle, ...]:
    """Return what keeps a run from passing its audit, of the settings and of the data.

    `goes_on`: whether it goes on from earlier runs.

    Raises:
        InputError: the data cannot be used, or an obstacle is neither what the config says itself
            nor `unverified`.
    """
    from dpaudit.auditing.checks.preflight import obstacles, refuse
    from dpaudit.generation.planned import planned_run
    from dpaudit.generation.records import read_records

    found = obstacles(planned_run(config, read_records(config.data), goes_on=goes_on))
    if not unverified:
        refuse(found, "--unverified generates it all the same, for no release.")
    return found


def require_passed(spent: Sequence[places.Location], model: str, monitor: Monitor) -> None:
    """Refuse to go on from a run that fails its own audit: what was spent there is not known.

    Where only the model shows that what a run took from its public prompts is public, the config's
    is asked.
    """
    from dpaudit.results.shell import argument

    places.require_runs(spent)
    for run in spent:
        verdict = audit(run, find_model=False, monitor=monitor).verdict
        if verdict == "not_verified" and open_run(run).manifest.public_parts:
            verdict = audit(run, model=model, monitor=monitor).verdict
        if verdict != "pass":
            remedy = (
                f"See `dpaudit verify {argument(str(run), 'RUN_DIR')}`; --unverified goes "
                "on all the same."
            )
            raise InputError(f"--spent {run}", "it does not pass its own audit.", remedy)
