"""Scenes as files: point clouds, trajectories, COLMAP models and saved scenes."""
