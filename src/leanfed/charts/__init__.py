"""Figures and tables from plain columns; imports no training code and needs no display."""
