"""What cairn.dcp is made of. Imports torch."""
