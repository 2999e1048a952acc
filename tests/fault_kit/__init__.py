"""The fault kit: a seeded workload on real servers, faults in a drawn order, and an oracle that uses no code of the
product.

The command is `python -m tests.fault_kit run`. `docs/faults.md` describes each fault and what is compared.
"""
