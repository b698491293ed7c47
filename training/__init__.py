"""From batches to a trained model: the loss, the step, the optimizer, checkpoints and metrics."""
