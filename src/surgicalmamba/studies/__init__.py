"""Studies: lists of configs, run to the end whatever interrupts them, and the tables and figures made from their predictions."""
