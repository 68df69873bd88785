"""`holdfast pool`: what pools there are, how they stand, and what people may change about them."""
