"""Runtimes of the network: PyTorch everywhere, OpenVINO on CPUs; their engines and cache."""

BACKENDS = ("torch", "openvino")
