"""`hvdcloud doctor`: the engine that runs checks side by side, and the checks of this machine."""
