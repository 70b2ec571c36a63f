"""S_t = A_t ⋄ S_{t−1} + k_t⊗v_t: structures and the engine that runs them."""
