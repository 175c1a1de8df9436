"""What is checked of this machine and the project: `hvdcloud doctor` shows it, `up` and `launch` ask first."""
