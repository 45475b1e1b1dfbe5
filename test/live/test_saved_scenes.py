"""A stream that begins in a saved scene, without a middleware."""

import dataclasses

import numpy as np
import pytest
from support.ring import CALM, SIZE, DescribedTruth, walked
from support.streams import stream_of

from da3_ros.export.scene_file import save_scene
from da3_ros.live.scene_stream import RawFrame
from da3_ros.messages import build
from da3_ros.parameter_schema import ConfigError
from da3_ros.types import Calibration

LATER = 10**12  # ns
VALUES = {
    "process_res": 84, "window.size": 6, "map.voxel_m": 0.1, "refinement.enabled": False,
    "keyframe.rotation_deg": 5.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def ring():
    return walked(60, 0.35)


@pytest.fixture(scope="module")
def folder(ring, tmp_path_factory):
    """With a saved scene ``monday`` of the way to frame 45."""
    home = tmp_path_factory.mktemp("scenes")
    stream, host = opened(home, ring)
    show(stream, host, ring[:45])
    save_scene(stream.pipeline.snapshot(), home / "monday")
    return home


def opened(home, truth, **values):
    session = DescribedTruth(truth, 2, noise=CALM)
    return stream_of(
        session, export_dir=str(home), hold_when_blind=False, **VALUES, **values
    )  # images are black


def show(stream, host, truth):
    K = truth[0].K.copy()
    K[:2, 2] -= 0.5
    black, lens = np.zeros((*SIZE[::-1], 3), np.uint8), Calibration(*SIZE, K)
    for f in truth:
        message = build.image(host.lib, f.stamp_ns, "camera", black)
        stream.put(RawFrame(f.stamp_ns, message, "camera", lens, True, "image"))
        while stream.step():
            pass


def later(truth):
    return [dataclasses.replace(f, stamp_ns=f.stamp_ns + LATER) for f in truth]


@pytest.mark.long
def test_a_node_begins_in_a_saved_scene_and_finds_its_place(folder, ring, caplog):
    caplog.set_level("INFO")
    again = later(ring[15:45])
    stream, host = opened(folder, [*ring, *again], **{"map.load": "monday"})
    assert "the pose of new windows is looked for among" in caplog.text
    before = len(stream.pipeline.map)
    assert before > 1000
    assert not stream.pipeline.map.pose_known
    assert np.isnan(stream.pipeline.pose_search.seconds)
    loaded = {s.id for s in stream.pipeline.map.submaps.values()}
    show(stream, host, again[:2])
    assert not stream.pipeline.map.pose_known
    store = stream.pipeline.map
    assert set(store.submaps) > loaded
    # The map to point at, until the camera is found in it.
    shown = store.view.thinned(10**6, np.eye(4))
    assert len(shown) == sum(len(store.submaps[id].cloud) for id in loaded)
    assert set(np.unique(store.view.path().rows["submap"])) <= loaded
    show(stream, host, again[2:])
    assert stream.pipeline.map.pose_known
    assert 0 < stream.pipeline.pose_search.seconds < 2.9  # stamps are 0.1 s apart
    assert len(stream.pipeline.map) > before


def test_a_reset_ends_the_loaded_scene_and_its_search(folder, ring):
    stream, host = opened(folder, ring, **{"map.load": "monday"})
    show(stream, host, ring[:6])
    assert stream.pipeline.pose_search.seconds >= 0
    stream.reset()
    assert not len(stream.pipeline.map)
    assert stream.pipeline.loops.saved_keyframes is None
    assert stream.pipeline.map.pose_known
    assert np.isnan(stream.pipeline.pose_search.seconds)


@pytest.mark.parametrize("load", ["../outside", "/etc", "tuesday", "file"])
def test_a_scene_that_cannot_be_loaded_is_one_line(folder, ring, load):
    (folder / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^map\.load is ") as error:
        opened(folder, ring, **{"map.load": load, "map.store": "night"})
    assert "\n" not in str(error.value)
    assert not (folder / "night").exists()


def test_a_scene_without_metres_is_refused_where_they_are_wanted(folder, ring):
    with pytest.raises(ConfigError, match=r"map\.load is 'monday'.*set it to none"):
        opened(folder, ring, **{"map.load": "monday", "scale.source": "odometry"})


def test_a_hint_says_what_it_does(folder, ring):
    stream, host = opened(folder, ring, **{"loop.enabled": False})
    show(stream, host, ring[:6])
    assert "loop.enabled is false" in stream.look_near("map", 1.0, 2.0, 0.5)
    stream, host = opened(folder, ring)
    assert "the map is empty" in stream.look_near("map", 1.0, 2.0, 0.5)
    assert stream.pipeline.pose_search.hint is None
    show(stream, host, ring[:6])
    assert "is known, and changes if the images say so" in stream.look_near("map", 1.0, 2.0, 0.5)
    assert stream.pipeline.pose_search.hint is not None
    stream, host = opened(folder, ring, **{"map.load": "monday"})
    assert "give it in map" in stream.look_near("odom", 1.0, 2.0, 0.5)
    assert stream.pipeline.pose_search.hint is None
    assert "looked for near (1.00, 2.00)" in stream.look_near("map", 1.0, 2.0, 0.5)
    hint = stream.pipeline.pose_search.hint
    np.testing.assert_array_equal(hint.position, [1.0, 2.0, 0.0])
