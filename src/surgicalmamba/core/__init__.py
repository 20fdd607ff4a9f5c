"""The mathematics: tensors in, tensors out. No files, no clocks, no logging."""
