"""The view in a browser: a process of its own, which shows what a node or a command sends."""
