"""The barrier in etcd: its client, its rounds and its members."""
