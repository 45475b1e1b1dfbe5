"""Log lines above progress bars, and an interruption while one is written."""

import io
import logging
import sys

import pytest

from da3_ros.cli.command_line import Interrupted
from da3_ros.replay.log_lines import logs_above_bars


class Terminal(io.StringIO):
    """A stream that fails in its first write, as a test says."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def write(self, text):
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().write(text)


@pytest.fixture
def shown(monkeypatch):
    """Makes a logger that writes to a terminal, of a level and a format of its own."""

    def make(error=None):
        terminal = Terminal(error)
        monkeypatch.setattr(sys, "stderr", terminal)
        handler = logging.StreamHandler(terminal)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        handler.setLevel("WARNING")
        monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
        return terminal, handler

    return make


def test_lines_keep_their_format_and_level(shown):
    terminal, handler = shown()
    with logs_above_bars():
        logging.getLogger("a").warning("seen")
        logging.getLogger("a").info("not seen")
    assert terminal.getvalue() == "WARNING: seen\n"
    assert logging.getLogger().handlers == [handler]


def test_an_interruption_passes(shown):
    shown(Interrupted())
    with pytest.raises(Interrupted), logs_above_bars():
        logging.getLogger("a").warning("half")


def test_an_error_is_logged_as_others(shown):
    terminal, _ = shown(OSError("no space"))
    with logs_above_bars():
        logging.getLogger("a").warning("lost")
        logging.getLogger("a").warning("seen")
    assert "no space" in terminal.getvalue()
    assert terminal.getvalue().endswith("WARNING: seen\n")


def test_other_handlers_stay(shown, tmp_path):
    shown()
    file = logging.FileHandler(tmp_path / "log")
    logging.getLogger().addHandler(file)
    with logs_above_bars():
        assert file in logging.getLogger().handlers
    file.close()
