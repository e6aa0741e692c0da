"""A simulated OpenRouter: the real wire, its own prices, a bill of every call, and faults by name.

It shares no code with the api it is used to test.
"""

from entrypoints.simulator.simulator import Simulator

__all__ = ["Simulator"]
