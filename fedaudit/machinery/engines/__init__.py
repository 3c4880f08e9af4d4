"""Engines: how workers are started and reached. An engine is a module of this folder, which `Executor` loads by its
name, so that no key depends on it; its function `start(build, workers, say, ...)` returns a `Crew`."""
