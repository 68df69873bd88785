"""The operations of the library, each written once as a coroutine. No module here names an event loop or an engine."""
