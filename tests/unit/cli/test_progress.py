"""Progress of long commands: a bar on a terminal, elsewhere a line from time to time."""

from __future__ import annotations

from io import StringIO

import pytest

from broadsheet.cli.output.progress import Unit, progress_display


def test_progress_without_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one for each look: logs of jobs are read by people, too."""
    monkeypatch.setattr("broadsheet.cli.output.progress.LINE_SECONDS", 0.0)
    with progress_display("playing logs/a", Unit.BYTES) as display:
        display.show(1_500_000, 4_500_000)
        monkeypatch.setattr("broadsheet.cli.output.progress.LINE_SECONDS", 60.0)
        display.show(1_500_000, 4_500_000)
    assert capsys.readouterr().err == "playing logs/a: 1.5 MB of 4.5 MB\n"


class _Screen(StringIO):
    def isatty(self) -> bool:
        """Pretend to be a terminal."""
        return True


@pytest.mark.parametrize(
    ("unit", "shown"), [(Unit.BYTES, "4.5/4.5 MB"), (Unit.PIECES, "4500000/4500000")]
)
def test_progress_on_a_terminal_is_a_bar(
    unit: Unit, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before anything is known of how much there is."""
    screen = _Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with progress_display("playing logs/a", unit) as display:
        display.show(0, 0)
        display.show(4_500_000, 4_500_000)
    assert "playing logs/a" in screen.getvalue()
    assert shown in screen.getvalue()
