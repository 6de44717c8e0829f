"""TFDS dataset builders of this project; importing a module registers its builder."""
