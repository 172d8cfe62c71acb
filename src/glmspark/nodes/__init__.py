"""Reaching and knowing machines: transports, facts, processes.

A fact is a command and a pure parser; a transport runs the command on a node. Nothing here changes a node.
"""
