"""Released texts on trial: do they name the records of their own batch more often than chance?"""
