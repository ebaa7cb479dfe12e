"""`dpaudit demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.audits import leave
from dpaudit.commands.generate import generate_run
from dpaudit.commands.options import NamedPath, output_options
from dpaudit.commands.terminal import TERMINAL, output, stdout

if TYPE_CHECKING:
    from dpaudit.api.audits import Audit

#: What sentences call the runs, and how many texts of each are shown.
_TITLES, _SHOWN = {"mean": "Mean", "central": "Central mean"}, 2


@click.command()
@click.option("--out", type=NamedPath(path_type=Path), default=Path("dpaudit-demo"), show_default=True)
@click.option("--quick", is_flag=True, help="Short texts of one label, in a minute: to see that everything works.")
@output_options
def demo(out: Path, quick: bool, as_json: bool) -> None:
    """Generate, audit and compare two small runs.

    Texts by a mean, whose epsilon is fixed beforehand, and by a central mean, whose epsilon is that of the texts that
    came out. Model and records are packages.

    \b
    Example:
      dpaudit demo --out /tmp/demo
    """
    from dpaudit.api.audits import audit
    from dpaudit.api.places import writing
    from dpaudit.auditing.comparison import compare_runs
    from dpaudit.generation.starting import demo_configs
    from dpaudit.reports.terminal import print_demo, print_summary
    from dpaudit.reports.write import write_comparison

    audits: dict[str, Audit] = {}
    for aggregator, config in demo_configs(quick=quick).items():
        run = out / aggregator
        if not (run / "hashes").exists():
            generate_run(config, run, aggregator)
        audits[aggregator] = audit(run, model=config.model.name, monitor=TERMINAL)
        audits[aggregator].save()
    results = {name: found.result for name, found in audits.items()}
    comparison, page = compare_runs(results), out / "comparison.html"
    links = {name: f"{name}/report/report.html" for name in results}
    with writing(page, "--out"):
        write_comparison(comparison, page, links)
    files = {name: str(out / link) for name, link in links.items()}
    with output():
        if as_json:
            verdicts = {name: result.verdict for name, result in results.items()}
            click.echo(json.dumps({"verdicts": verdicts, "reports": files, "comparison": str(page)}))
        else:
            for result in results.values():
                if result.verdict != "pass":
                    print_summary(result, stdout())
            print_demo(
                {_TITLES[name]: (result, _first_texts(out / name)) for name, result in results.items()}, stdout()
            )
            texts = ", ".join(f"{name}/samples.jsonl" for name in results)
            click.echo(f"In {out}: {texts},\n  {', '.join(links.values())}, comparison.html")
            click.echo("Next: dpaudit init mine.yaml --data YOUR_RECORDS.csv")
    leave(*audits.values())


def _first_texts(run: Path) -> list[tuple[str, str]]:
    """The first text of each of a run's first two labels."""
    from dpaudit.runs import RunReader

    found: dict[str, str] = {}
    for sample in RunReader(run).samples():
        found.setdefault(sample.label or "", sample.text or "")
        if len(found) == _SHOWN:
            break
    return list(found.items())
