"""Pictures of graphs: DOT for graphviz, and SVG with a layout of our own. Pure: no torch, no Thunder."""
