"""The laws of Holdfast as a test suite: an engine author proves an engine with it.

    pytest --pyargs holdfast.testing.conformance --holdfast-url 'redis://localhost:6379?namespace={unique}'

Every law runs through the blocking face and the asyncio face. A test starts on an empty place: `{unique}` in the URL
becomes a fresh word for every test, `{folder}` a fresh empty directory. A URL without either gets a namespace of its
own for every test, if the engine takes one. The suite skips the laws of a capability that the engine does not declare,
and the reason of the skip names the capability.

`tests/laws` of the repository runs the same laws on the engines of Holdfast.
"""
