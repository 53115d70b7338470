"""For each protection a small change that removes it, and the tests that must notice.

``python -m mutants`` (`make mutants`) applies each change to a copy of the source tree and runs its tests there. A
mutant that survives means that a protection has no test.
"""
