"""Predicted against measured training on one device, in one command."""
