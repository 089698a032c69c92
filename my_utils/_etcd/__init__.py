"""The barrier in etcd: its client, its rounds and the seats of those who wait."""
