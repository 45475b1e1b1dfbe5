"""Gaussian splats: what the network gives for each pixel, and Gaussians in the scene."""
