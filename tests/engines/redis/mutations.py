"""Mistakes in scripts: the comparison of scripts and rules must find each of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A possible mistake: one changed line of the scripts."""

    mistake: str
    line: str
    instead: str

    def applied_to(self, text):
        return text.replace(self.line, self.instead)

    def __str__(self):
        return self.mistake
