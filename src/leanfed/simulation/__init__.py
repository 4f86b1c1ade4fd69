"""Engines that compute the rounds of many virtual clients on one machine."""
