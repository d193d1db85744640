"""What only a machine with a GPU can prove, step by step: scripts/prove-gpu."""
