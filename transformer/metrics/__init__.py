"""How good outputs are.

Scores of outputs against references, with no model in sight.
"""
