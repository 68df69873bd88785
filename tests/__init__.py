"""The tests, and in `support` what they and the other tools of this repository start and break."""
