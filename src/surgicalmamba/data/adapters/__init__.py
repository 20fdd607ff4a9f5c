"""One adapter per dataset: where its files are, what its labels mean. All else is blind to the dataset."""
