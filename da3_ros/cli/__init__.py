"""The command line. Functions of commands import heavy modules when called."""

from da3_ros.cli.main import main

__all__ = ["main"]
