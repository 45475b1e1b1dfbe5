"""The command line. Functions of commands import heavy modules when called."""

from da3_ros.cli.command_line import main, main_process

__all__ = ["main", "main_process"]
