"""Mistakes in scripts: each must be noticed by whatever compares the scripts with the rules."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A mistake that somebody could make: one line of the scripts, changed."""

    mistake: str
    line: str
    instead: str

    def applied_to(self, text):
        return text.replace(self.line, self.instead)

    def __str__(self):
        return self.mistake
