"""What a verb of the user does, from files to files. Enter by the folder of the verb; `run` holds what verbs share."""
