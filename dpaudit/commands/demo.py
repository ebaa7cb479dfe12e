"""`dpaudit demo`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpaudit.commands.audits import leave
from dpaudit.commands.options import NamedPath, output_options
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, print_document, print_json, print_line

#: What sentences call the runs, and how many texts of each are shown.
_TITLES, _SHOWN = {"mean": "Mean", "central": "Central mean"}, 2


@click.command()
@click.option(
    "--out",
    type=NamedPath(path_type=Path),
    default=Path("dpaudit-demo"),
    show_default=True,
    help="Folder for the runs and their reports.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Short texts of one label, in about a minute: a test that everything works.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Model: a Hugging Face name, a folder, or gemma3-270m, which writes better and comes in "
    "packages [default: the example's].",
)
@click.option(
    "--accept-gemma-terms",
    "accept_terms",
    is_flag=True,
    help="Accept Gemma's terms of use, which this command shows without it.",
)
@output_options
def demo(out: Path, quick: bool, model: str | None, accept_terms: bool, as_json: bool) -> None:
    """Generate, audit and compare two small runs.

    One run uses a mean, whose epsilon is fixed before the run. The other uses a central mean, whose
    epsilon is the cost of the texts that were sampled. The model and the records are Python
    packages.

    gemma3-270m is never installed unasked: the command says what installs it, shows its terms of
    use, and once you accept them joins its parts in the cache. From then on, any config may name
    it.

    \b
    Example:
      dpaudit demo --out /tmp/demo
    """
    from dpaudit.api.starting import MODEL, terms_to_accept
    from dpaudit.api.starting import demo as run_demo
    from dpaudit.reports.terminal import demo as demo_summary
    from dpaudit.reports.terminal import summary

    model = model or MODEL
    if not accept_terms and (terms := terms_to_accept(model)):
        (note if as_json else print_line)(terms)
    audits = run_demo(
        out, quick=quick, model=model, accept_terms=accept_terms, monitor=TERMINAL
    ).audits
    results = {name: found.result for name, found in audits.items()}
    links = {name: f"{name}/report/report.html" for name in results}
    if as_json:
        verdicts = {name: result.verdict for name, result in results.items()}
        files = {name: str(out / link) for name, link in links.items()}
        page = str(out / "comparison.html")
        print_json(json.dumps({"verdicts": verdicts, "reports": files, "comparison": page}))
    else:
        for result in results.values():
            if result.verdict != "pass":
                print_document(summary(result))
        shown = {
            _TITLES[name]: (result, _first_texts(out / name)) for name, result in results.items()
        }
        print_document(demo_summary(shown))
        texts = ", ".join(f"{name}/samples.jsonl" for name in results)
        print_line(f"In {out}: {texts},\n  {', '.join(links.values())}, comparison.html")
        print_line("Next: dpaudit init mine.yaml --data YOUR_RECORDS.csv")
    leave(*audits.values())


def _first_texts(run: Path) -> list[tuple[str, str]]:
    """Return the first text of each of a run's first two labels."""
    from dpaudit import open_run

    found: dict[str, str] = {}
    for sample in open_run(run).texts:
        found.setdefault(sample.label or "", sample.text or "")
    return list(found.items())[:_SHOWN]
