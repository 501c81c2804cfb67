//! npy
