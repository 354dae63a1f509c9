"""What is done to features before they are searched. Enter by `chain.parse_chain`: `pca:64+l2` -> `Chain`."""
