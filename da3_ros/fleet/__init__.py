"""Many recordings, processed by workers on one machine or a Ray cluster."""
