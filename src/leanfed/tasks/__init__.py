"""What is learned: data sets, how they are split over clients, models, and the cut into base and head."""
