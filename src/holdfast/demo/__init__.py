"""A demonstration: five processes and one lock; one process is killed, one is frozen and its late write is refused.

The rule: the view shows the recorded history and nothing else, and the summary at the end is the result of the checkers
of `holdfast.testing` for that same history. Run it with `python -m holdfast.demo` or `holdfast demo`.
"""
