"""What recordings and the live node both know of cameras and robot. Imports no ROS."""
