"""A segment's life: followed, rotated, guarded, told when it is missing, archived or deleted when it is done."""
