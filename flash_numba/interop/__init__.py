"""Attention inside other libraries; each module needs its library."""
