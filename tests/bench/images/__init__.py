"""What images cost: bytes by layer, and seconds to build, push and pull them."""
