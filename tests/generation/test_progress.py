"""What is said of a generation that is under way: phases, batches, and the time that is left."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from dpaudit.commands import progress
from dpaudit.commands.progress import PHASES, TERMINAL, GenerationProgress, Pulse
from dpaudit.generation.events import BatchDone, BatchStarted, PhaseBegan, RunCommitted, StepDone

STEPS = 48


class Clock:
    """A clock that stands until it is turned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def shown(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[float, float | None]], str]:
    """(tokens, total) after each batch of four, the first of which existed; and the screen."""
    screen = io.StringIO()
    monkeypatch.setattr(
        progress, "console", lambda stderr: Console(file=screen, width=80, force_terminal=True)
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    counts = []
    with TERMINAL.titled("a-run-with-a-long-name").generation(STEPS) as tell:
        assert isinstance(tell, GenerationProgress)
        for phase in PHASES:
            tell(PhaseBegan(phase))
        for batch in range(4):
            if batch:
                tell(BatchStarted(batch, 4))
                for token in range(10):
                    tell(StepDone(batch, token + 1))
            tell(BatchDone(batch, 4, 10, resumed=not batch))
            task = tell._bars.tasks[0]
            counts.append((task.completed, task.total))
    return counts, screen.getvalue()


def test_a_bar_counts_the_tokens_of_now_and_shows_no_epsilon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts, screen = shown(monkeypatch)
    # texts end as early as the finished one
    assert counts == [(0, 3 * STEPS), (10, 30), (20, 30), (30, 30)]
    assert "4 of 4 batches" in screen and "epsilon" not in screen


@pytest.mark.parametrize("together", [1, 3], ids=["alone", "together"])
@pytest.mark.parametrize("prompt", [0.0, 20.0], ids=["short", "long"])
def test_the_time_left_is_right_from_the_second_batch_on(
    monkeypatch: pytest.MonkeyPatch, prompt: float, together: int
) -> None:
    """Texts end early, and a batch's prompts take as long as 20 of its tokens."""
    clock, batches = Clock(monkeypatch), 12
    lengths = [18, 24, 20, 27, 16, 22, 25, 19, 21, 23, 17, 26]
    seen: list[tuple[float, float | None]] = []
    with progress.progress_bars() as bars:
        tell = GenerationProgress(bars, "run", STEPS)
        tell(RunCommitted("0" * 64))
        for first in range(0, batches, together):
            those = range(first, first + together)
            for batch in those:
                tell(BatchStarted(batch, batches))
                clock.now += prompt
                seen.append((clock.now, tell.seconds_left()))
            for token in range(max(lengths[batch] for batch in those)):
                for batch in those:
                    if token < lengths[batch]:
                        clock.now += 1.0
                        tell(StepDone(batch, token + 1))
                        seen.append((clock.now, tell.seconds_left()))
                for batch in those:
                    if token + 1 == lengths[batch]:
                        tell(BatchDone(batch, batches, token + 1))
        second = sum(lengths[:together]) + prompt * together
        end, begun = clock.now, 1000.0
    late = [
        (end - now, left)
        for now, left in seen
        if now - begun > second and end - now > 0.15 * (end - begun)
    ]
    assert len(late) > 50
    assert all(left is not None and 1 / 1.5 < left / true < 1.5 for true, left in late)


def test_the_time_left_counts_the_tokens_of_all_batches_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A baseline's texts begin together: when the first one ends, most tokens are of the others."""
    clock, batches, ended = Clock(monkeypatch), 24, 0
    lengths = [12 + 3 * batch % 17 for batch in range(batches)]
    late = []
    with progress.progress_bars() as bars:
        tell = GenerationProgress(bars, "baseline", STEPS)
        tell(RunCommitted("0" * 64))
        for batch in range(batches):
            tell(BatchStarted(batch, batches))
        for token in range(max(lengths)):
            for batch in range(batches):
                if token < lengths[batch]:
                    clock.now += 1.0
                    tell(StepDone(batch, token + 1))
                if token + 1 == lengths[batch]:
                    tell(BatchDone(batch, batches, token + 1))
                    ended += 1
                    if 2 <= ended <= batches / 2:
                        late.append((clock.now, tell.seconds_left()))
    assert len(late) > 9
    assert all(left and 1 / 1.6 < left / (clock.now - now) < 1.6 for now, left in late), late


def test_a_log_has_lines_about_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SOON", 0.05)
    monkeypatch.setattr(progress, "PATIENCE", 0.2)
    with TERMINAL.titled("run").generation(STEPS) as tell:
        for phase in PHASES:  # each is over in a moment
            tell(PhaseBegan(phase))
        tell(PhaseBegan("loading"))
        said = until(capfd, lambda lines: len(lines) >= 3)
        assert {*said} == {"run: loading the model"}
        tell(BatchStarted(0, 2))
        tell(StepDone(0, 4))
        assert until(capfd, bool)[-1].startswith("run: batch 1 of 2, at most about ")
        tell(BatchDone(0, 2, 4))
        tell(BatchStarted(1, 2))
        said = until(capfd, lambda lines: len(lines) >= 2)
        assert said[0].startswith("run: 1 of 2 batches done, about ")
        assert said[1].startswith("run: batch 2 of 2, about ")


def until(capfd: pytest.CaptureFixture[str], enough: Callable[[list[str]], bool]) -> list[str]:
    """The lines on stderr, once there are enough of them."""
    lines: list[str] = []
    for _ in range(200):
        lines += capfd.readouterr().err.splitlines()
        if enough(lines):
            return lines
        time.sleep(0.05)
    raise AssertionError(lines)


def test_what_takes_a_moment_is_not_said(capfd: pytest.CaptureFixture[str]) -> None:
    with TERMINAL.waiting("reading"), TERMINAL.generation(STEPS) as tell:
        tell(PhaseBegan("loading"))
    assert capfd.readouterr().err == ""


def test_a_pulse_ends_with_what_it_is_about(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SOON", 0.01)
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    with pytest.raises(KeyboardInterrupt), Pulse(lambda: "going on") as pulse:
        until(capfd, bool)
        raise KeyboardInterrupt
    assert not pulse._thread.is_alive()


def test_a_log_tells_which_of_several_tasks_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SOON", 0.05)
    monkeypatch.setattr(progress, "PATIENCE", 0.1)
    with TERMINAL.steps() as show:
        show("embedding", 3, 9)
        assert until(capfd, bool)[-1] == "embedding: 3 of 9"
        show("training", 0, 5)
        assert until(capfd, bool)[-1] == "training: 0 of 5"


def test_a_log_tells_how_far_a_task_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SOON", 0.05)
    monkeypatch.setattr(progress, "PATIENCE", 0.1)
    with progress.progress_bar("Replaying", "passes") as show:
        assert until(capfd, bool)[0] == "Replaying"
        show(0, 1234)
        lines = until(capfd, lambda found: "of" in found[-1] if found else False)
        assert lines[-1] == "Replaying: 0 of 1,234 passes"  # nothing is measured yet
        show(1, 1234)
        show(2, 1234)
        lines = until(capfd, lambda found: "2 of" in found[-1] if found else False)
        assert lines[-1].startswith("Replaying: 2 of 1,234 passes, about ")
        show(1234, 1234)  # something else goes on
        lines = until(capfd, lambda found: "1,234 of" in found[-1] if found else False)
        assert lines[-1] == "Replaying: 1,234 of 1,234 passes"
