"""Probes that read from a language model's hidden states how long its answer will be."""
