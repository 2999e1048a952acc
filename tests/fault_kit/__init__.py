"""The fault kit: a seeded workload on real servers, faults in a drawn order, and an oracle that knows no code of the product.

`python -m tests.fault_kit run` is its command; `docs/faults.md` says what each fault does and what is compared.
"""
