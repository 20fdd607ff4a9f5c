"""Published online recognizers, written from scratch under the contract of `model.recognizer`, a file each.

They are built and loaded by name through `model.registry`. Each docstring lists what is published, uncertain
and changed; so does docs/peers.md."""
