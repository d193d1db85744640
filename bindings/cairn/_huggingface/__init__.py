"""What cairn.huggingface is made of. Imports torch and transformers."""
