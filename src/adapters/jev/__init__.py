"""The decision model Jev, over OpenRouter's Decisions API."""

from adapters.jev.router import JevToolRouter, decisions_url

__all__ = ["JevToolRouter", "decisions_url"]
