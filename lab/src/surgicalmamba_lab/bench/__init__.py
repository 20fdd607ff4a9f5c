"""Measurements behind `surgicalmamba bench`: medians, 95th percentiles and ratios taken in one run."""
