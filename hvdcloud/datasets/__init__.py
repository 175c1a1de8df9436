"""Data sets as this machine sees them: folders that are uploaded, and what a bucket holds of one."""
