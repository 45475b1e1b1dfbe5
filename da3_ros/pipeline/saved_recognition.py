"""What recognises the locations of a scene, as it is saved and loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from da3_ros.config import PipelineConfig
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.submaps import Snapshot


def with_recognition(saved: Snapshot, known: Recognition, config: PipelineConfig) -> Snapshot:
    """Returns a snapshot with what recognises its locations, and by which weights."""
    return dataclasses.replace(
        saved, recognition=dataclasses.replace(known, model=weights_name(config))
    )


def usable_recognition(saved: Snapshot, config: PipelineConfig) -> Recognition | None:
    """Returns what recognises the locations of a saved scene; None: nothing does.

    Descriptors of other weights cannot be compared.
    """
    known = saved.recognition
    if known is None or not known.keyframes or not config.loop.enabled:
        return None
    return known if known.model == weights_name(config) else None


def search_note(saved: Snapshot, config: PipelineConfig) -> str:
    """Returns what happens to new windows in a saved scene, for the user."""
    known = usable_recognition(saved, config)
    if known is not None:
        return f"the pose of new windows is looked for among {len(known.keyframes)} keyframes"
    begin = "new windows begin a new chain where the saved one ended"
    if saved.recognition is None or not saved.recognition.keyframes:
        return begin + ": the scene has no keyframes that recognise its locations"
    if not config.loop.enabled:
        return begin + ": loop.enabled is false, so that no locations are recognised"
    return begin + f": its locations are recognised by the model {saved.recognition.model} only"


def weights_name(config: PipelineConfig) -> str:
    """Returns the name of the weights whose descriptors new keyframes have."""
    model, checkpoint = config.inference.model, config.inference.checkpoint
    return f"{model} {Path(checkpoint).name}".strip()
