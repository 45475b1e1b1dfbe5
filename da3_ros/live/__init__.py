"""The live node's stream, without rclpy."""
