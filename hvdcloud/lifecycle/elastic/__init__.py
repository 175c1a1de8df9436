"""What only elastic runs need on the client: nodes that were lost are replaced."""
