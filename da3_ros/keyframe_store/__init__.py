"""Keyframes of a scene on disk: images, depth, confidence, calibration and poses, in a journal."""
