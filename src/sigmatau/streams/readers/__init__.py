"""Readers of the official file formats: bytes on disk in, checked uint8 arrays out."""
