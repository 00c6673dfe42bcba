"""Time model: the modeled time of a plan and its inputs."""
