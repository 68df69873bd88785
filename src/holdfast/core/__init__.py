"""Each operation once, as a coroutine over an engine. No module here names an event loop or an engine."""
