"""What tools of the driver say of simulated GPUs."""
