"""Runs a network on one device: images and windows in, predictions out. Knows no ROS, no map."""

from da3_ros.config import InferenceConfig
from da3_ros.inference.preprocess import fit_size, resize_for_network
from da3_ros.inference.session import DeviceError, InferenceSession, choose_device

__all__ = [
    "DeviceError",
    "InferenceConfig",
    "InferenceSession",
    "choose_device",
    "fit_size",
    "resize_for_network",
]
