"""The pool package."""
