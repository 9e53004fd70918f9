//! Tokens of the members of a bench, and the relay's trust in who issues them.

use anyhow::Context;
use canopy_bots::Issuer;
use canopy_relay::DEFAULT_WORLD;
use canopy_session::{Identity, SessionConfig};
use canopy_token::SigningKey;

/// Who issues them.
pub(crate) struct Tokens {
    issuer: Issuer,
    /// The path of the file by which a relay trusts it.
    trust: String,
    /// Kept, so that the relay can read it again.
    _folder: tempfile::TempDir,
}

impl Tokens {
    /// Makes a key, and a file by which a relay trusts it.
    pub(crate) fn new() -> anyhow::Result<Tokens> {
        let key = SigningKey::from_seed([1; 32]);
        let folder = tempfile::tempdir().context("there is no room for the trust file")?;
        let trust = folder.path().join("trust.toml").display().to_string();
        std::fs::write(&trust, format!("keys = [\"{}\"]\n", key.public()))?;
        let issuer = Issuer::new(key, DEFAULT_WORLD.to_owned());
        Ok(Tokens { issuer, trust, _folder: folder })
    }

    /// What tells a relay to take these tokens alone.
    pub(crate) fn flags(&self) -> [&str; 2] {
        ["--trust", &self.trust]
    }

    /// Gives a member an identity and the token that belongs to it.
    pub(crate) fn give(&self, config: &mut SessionConfig, number: u32) -> anyhow::Result<()> {
        let mut secret = [7; 32];
        secret[..4].copy_from_slice(&number.to_be_bytes());
        let identity = Identity::new(secret);
        config.token = self.issuer.issue(number, &identity, config.comtree)?.into_bytes();
        config.identity = Some(identity);
        Ok(())
    }
}
