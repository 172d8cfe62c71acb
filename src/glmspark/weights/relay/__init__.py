"""What runs on each node while weights spread: it takes files from one side and passes them on to others.

Shipped to nodes as one zip archive and run there by Python 3.10 or newer: standard library only, and blake3
where that Python has it. It imports nothing else of glmspark.
"""
