"""Child processes: guards, scratch folders, memory, pools, and the search for stopped processes."""
