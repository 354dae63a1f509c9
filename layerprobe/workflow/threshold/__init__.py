"""At which similarity are two images accepted as of one class, and how often is that right on unseen classes?"""
