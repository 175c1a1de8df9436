"""How the nodes of a cluster know and reach each other."""
