import io

from rich.console import Console

from dpaudit.commands import progress
from dpaudit.commands.progress import GenerationProgress
from dpaudit.generation.events import BatchDone, BatchStarted, StepDone

STEPS = 48


def shown(monkeypatch) -> tuple[list[tuple[float, float | None]], str]:
    """(tokens, total) after each batch of four, the first of which existed; and the screen."""
    screen = io.StringIO()
    monkeypatch.setattr(
        progress, "console", lambda stderr: Console(file=screen, width=80, force_terminal=True)
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    counts = []
    with progress.progress_bars() as bars:
        tell = GenerationProgress(bars, "a-run-with-a-long-name", STEPS)
        for batch in range(4):
            if batch:
                tell(BatchStarted(batch, 4))
                for token in range(10):
                    tell(StepDone(batch, token + 1))
            tell(BatchDone(batch, 4, 10, resumed=not batch))
            counts.append((bars.tasks[0].completed, bars.tasks[0].total))
    return counts, screen.getvalue()


def test_a_bar_counts_the_tokens_of_now_and_shows_no_epsilon(monkeypatch) -> None:
    counts, screen = shown(monkeypatch)
    assert counts == [(0, 3 * STEPS), (10, 2 * STEPS + 10), (20, STEPS + 20), (30, 30)]
    assert "4/4 batches" in screen and "epsilon" not in screen


def test_a_log_has_a_line_now_and_then(monkeypatch, capfd) -> None:
    now = iter(range(0, 1000, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    with progress.progress_bar("Replaying", "passes") as show:
        for done in range(6):
            show(done, 1234)
    assert capfd.readouterr().err.splitlines() == [
        "Replaying: 2 of 1,234 passes, about 2 h left",
        "Replaying: 5 of 1,234 passes, about 2 h left",
    ]
