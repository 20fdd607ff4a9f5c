"""The network: paths, blocks, head, backbone, and the checkpoint they are stored in."""
