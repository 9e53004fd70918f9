//! The folder of the clone engines.

/// Where installations are, unless another folder is asked for.
pub const ENGINE_FOLDER: &str = "/run/canopy/engine";
