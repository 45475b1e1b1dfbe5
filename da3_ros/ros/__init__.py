"""What touches ROS: message conversion, nodes and parameters. No geometry, no tensors."""
