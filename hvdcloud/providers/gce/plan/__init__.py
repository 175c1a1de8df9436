"""What Compute Engine is asked for. Pure: settings and spec in, request bodies out."""
