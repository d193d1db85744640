"""What cairn.lightning is made of. Imports lightning, or pytorch_lightning."""
