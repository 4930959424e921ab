"""The core: LXE and DRE behind AXI, driven by a command sequencer."""
