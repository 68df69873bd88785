"""A demonstration to look at: several processes, one lock, one of them killed, one frozen and refused.

The rule: what is shown is the recorded history and nothing else, and the summary at the end is what the checkers of
`holdfast.testing` say about that same history. Run it with `python -m holdfast.demo`.
"""
