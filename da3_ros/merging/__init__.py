"""Scenes of several sessions become one."""
