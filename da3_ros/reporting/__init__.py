"""The report of a run for people: what it kept of its course, figures, plots, one HTML page."""
