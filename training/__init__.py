"""Training of `da3-tiny` on rendered rooms. Not part of the installed package."""
