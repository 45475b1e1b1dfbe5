"""What an IMU says of a camera's motion: rotation, gravity, metres, faults of its mount.

Works on ``ImuStretch`` and poses; knows nothing of ROS, of the network or of the map.
"""
