"""Speed and memory beside the plain PyTorch loop; `make bench` runs them all."""
