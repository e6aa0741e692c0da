"""The fault rig: turns under every fault at once, and a reckoning with the provider's bill."""
