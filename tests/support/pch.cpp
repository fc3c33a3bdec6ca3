// Anchors the precompiled header; shared test code is added beside it.
