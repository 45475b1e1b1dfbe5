"""The command line. Functions of commands import heavy modules when called."""
