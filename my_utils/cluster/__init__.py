"""What ranks do together: barriers in etcd, clocks, splits of sequences."""
