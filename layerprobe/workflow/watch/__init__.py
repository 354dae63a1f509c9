"""What a training in anybody's loop is measured by at each epoch. Enter by `watch.Watch`."""
