"""`holdfast limit`: what was counted, and starting anew."""
