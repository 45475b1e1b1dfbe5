"""The command line. Each command's heavy imports are inside its function."""
