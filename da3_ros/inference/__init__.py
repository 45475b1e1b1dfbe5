"""Runs a network on one device: windows in, predictions out. Independent of ROS and maps."""

from da3_ros.config import InferenceConfig
from da3_ros.inference.devices import DeviceError, open_device
from da3_ros.inference.factory import open_networks
from da3_ros.inference.images import window_of_images
from da3_ros.inference.interfaces import MetricModel, Running, Session
from da3_ros.inference.memory_governor import WindowTooLargeError
from da3_ros.inference.metric_scale_model import MetricDepthModel
from da3_ros.inference.planner import BudgetError, Plan
from da3_ros.inference.preprocess import fit_size, resize_for_network
from da3_ros.inference.session import InferenceSession

__all__ = [
    "BudgetError",
    "DeviceError",
    "InferenceConfig",
    "InferenceSession",
    "MetricDepthModel",
    "MetricModel",
    "Plan",
    "Running",
    "Session",
    "WindowTooLargeError",
    "fit_size",
    "open_device",
    "open_networks",
    "resize_for_network",
    "window_of_images",
]
