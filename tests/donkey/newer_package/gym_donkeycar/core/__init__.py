"""The network part."""
