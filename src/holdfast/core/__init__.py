"""Each operation once, as a coroutine over an engine; no event loop and no engine is named here."""
