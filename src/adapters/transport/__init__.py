"""The shared way out: connections to other services, and the bytes they stream back."""
