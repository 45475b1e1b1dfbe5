"""Refines windows by features that are tracked through the images. No network, no ROS."""
