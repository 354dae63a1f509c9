"""Which trainings a study needs, and the table or figure that it ends in. Enter by `study.run_study`."""
