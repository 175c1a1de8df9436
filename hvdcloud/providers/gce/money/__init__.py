"""Machine types, prices and costs."""
