"""The mathematics of training: the state and the step, the loss, the optimizer and LoRA."""
