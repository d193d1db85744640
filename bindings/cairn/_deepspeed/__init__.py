"""What cairn.deepspeed is made of."""
