"""Renders images of scenes, depth and confidence."""
