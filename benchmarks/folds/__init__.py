"""Which folds sum a residual chain with the least traffic."""
