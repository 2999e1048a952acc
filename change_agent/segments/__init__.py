"""A segment's life: followed, rotated, guarded, reported when it is missing, archived or deleted when it is done."""
