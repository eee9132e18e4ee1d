"""How the network and the update are looked at: graph, channel and entries."""
