"""From the user's loader to the batches of this process's shards."""
