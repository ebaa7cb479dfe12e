"""`dpaudit demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.audits import audit_of, leave
from dpaudit.commands.generate import generate_run
from dpaudit.commands.options import NamedPath, output_options
from dpaudit.commands.places import save_reports, writing
from dpaudit.commands.terminal import output, stdout

if TYPE_CHECKING:
    from dpaudit.results import AuditResult


@click.command()
@click.option("--out", type=NamedPath(path_type=Path), default=Path("dpaudit-demo"), show_default=True)
@output_options
def demo(out: Path, as_json: bool) -> None:
    """Generate, audit and compare two small runs.

    Texts by a mean, whose epsilon is fixed beforehand, and by a central mean, whose epsilon is that of the texts that
    came out. Model and records are packages.

    \b
    Example:
      dpaudit demo --out /tmp/demo
    """
    from dpaudit.audit.comparison import compare_runs
    from dpaudit.generation.starting import demo_configs
    from dpaudit.reports.compare import print_comparison
    from dpaudit.reports.terminal import print_summary, print_texts
    from dpaudit.reports.write import write_comparison
    from dpaudit.runs import RunReader

    results: dict[str, AuditResult] = {}
    for aggregator, config in demo_configs().items():
        run = out / aggregator
        if not (run / "hashes").exists():
            generate_run(config, run, aggregator)
        results[aggregator] = audit_of(run)
        save_reports(results[aggregator], run / "report")
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
            print_comparison(comparison, stdout())
            for name, result in results.items():
                texts = ((sample.label, sample.text or "") for sample in RunReader(out / name).samples())
                click.echo()
                print_texts(f"{name} run", result, texts, stdout())
            click.echo("\nTexts:      " + "  ".join(str(out / name / "samples.jsonl") for name in results))
            click.echo("Reports:    " + "  ".join(files.values()))
            click.echo(f"Comparison: {page}")
    leave(*results.values())
