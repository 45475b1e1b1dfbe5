"""Outputs for navigation: where a robot can drive."""
