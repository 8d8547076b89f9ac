"""What a training step costs of a model whose layers and sequences ranks share."""
