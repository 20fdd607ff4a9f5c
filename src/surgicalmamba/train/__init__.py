"""Training: the losses of the paper's section "Output head and training objectives"."""
