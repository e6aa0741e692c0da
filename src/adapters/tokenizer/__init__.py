"""temp"""
from collections.abc import Sequence
from application.ports.token_estimator import TokenEstimator
class O200kTokenEstimator(TokenEstimator):
    async def count(self, texts: Sequence[str]) -> int: return sum(-(-len(t.encode("utf-8","replace"))//4) for t in texts)
