"""What csv2trace reads, and the browser that shows what it wrote."""
