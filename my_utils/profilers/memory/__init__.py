"""Where memory goes: samples over time, snapshots, and recovery from out of memory."""
