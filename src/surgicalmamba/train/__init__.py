"""Training and offline prediction: settings, losses, the loop, its state on disk, runs and predictions."""
