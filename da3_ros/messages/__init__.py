"""Contents of ROS messages, made and read without rclpy."""
