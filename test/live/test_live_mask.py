"""The live stream keeps the robot itself out, as a replay does: both prepare frames alike."""

import cv2
import numpy as np
import pytest
from support.streams import as_messages, stream_of

from da3_ros.parameter_schema import ConfigError
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

SIZE = (112, 84)


def test_live_depth_is_nan_where_the_mask_is_black(tmp_path):
    drawn = np.full(SIZE[::-1], 255, np.uint8)
    drawn[60:] = 0
    cv2.imwrite(str(tmp_path / "mask.png"), drawn)
    camera = SyntheticCamera(seed=2, size=SIZE, walk="straight", frames=2)
    stream, host = stream_of(TruthSession(camera), mask=str(tmp_path / "mask.png"))
    for raw in as_messages(camera, host.lib):
        stream.put(raw)
        assert stream.step()
    sent = [data for topic, data in host.sent if topic == "depth/image"]
    assert len(sent) == 2
    for data in sent:  # the pixels are the end of the message
        depth = np.frombuffer(data, np.uint8)[-4 * SIZE[0] * SIZE[1] :].view("<f4")
        depth = depth.reshape(SIZE[::-1])
        assert np.isnan(depth[60:]).all()
        assert not np.isnan(depth[:60]).all()


def test_configuring_without_the_masks_file_is_an_expected_error(tmp_path):
    """The node logs the text of a ConfigError and stays, as for a missing checkpoint."""
    with pytest.raises(ConfigError, match=r"^mask is '.*none\.png': No such file"):
        stream_of(TruthSession([]), mask=str(tmp_path / "none.png"))
