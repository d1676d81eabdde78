"""Rewrites kernels so that they run on the emulation: `functions` is the entrance."""
