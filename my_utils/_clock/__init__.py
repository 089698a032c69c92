"""How far the clocks of hosts are apart: exchanges, estimates, and the star of a job."""
