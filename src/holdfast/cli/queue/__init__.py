"""`holdfast queue`: how queues stand, who works on them, what is in them, and sending to them."""
