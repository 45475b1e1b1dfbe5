"""Pictures of scenes and depth."""
