"""Published online recognizers in our own words, one file each, all under the contract of `model.recognizer`.

They are built and loaded by name through `model.registry`; docs/peers.md says what is published, uncertain
and changed."""
