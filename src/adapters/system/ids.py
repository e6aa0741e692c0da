"""temp"""
import os, time
from uuid import UUID
from application.ports.clock import Ids
class UuidV7Ids(Ids):
    def new(self) -> UUID:
        n=(time.time_ns()//1_000_000)<<80 | int.from_bytes(os.urandom(10),'big')
        n=(n & ~(0xf<<76)) | (7<<76); n=(n & ~(3<<62)) | (2<<62)
        return UUID(int=n)
