"""What Hopper's instructions do, on NumPy: the CPU twins of the intrinsics beside this folder."""
