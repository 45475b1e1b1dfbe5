"""Joins windows into one scene and holds it, bounded. Knows arrays; no network, no ROS."""
