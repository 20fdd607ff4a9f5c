"""Live recognition: sessions, the engines that run them, snapshots."""
